"""Every figure of the paper, for one step on a tiny part of the data."""

import os
import re

import pytest

from adamcb.lab.commands.cli import main
from adamcb.lab.commands.reproduce import FIGURES, NUMBERS, Scale, figure_names
from adamcb.lab.methods import METHODS
from tests.lab.commands import read_rows

needs_data = pytest.mark.skipif("ADAMCB_DATA" not in os.environ, reason="set ADAMCB_DATA to the folder of the datasets")
# 89 million parameters: one method shows that the figure can be drawn.
LARGE = "convnext-base"
DRAWN = [name for name in FIGURES if name != "convnext-large"]  # drawn by the same lines, with 2 GB more


@needs_data
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("logistic", "mlp") else [pytest.mark.slow]) for name in DRAWN]
)
def test_every_figure_is_drawn(name, tmp_path, capfd, here):
    options = ["--steps", "1", "--fraction", "0.0005", "--batch-size", "4", "--seeds", "1", "--out", str(tmp_path)]
    few = ["--method", "adamcb-paper"] if name == LARGE else ["--method", "adam", "--method", "adamcb-paper"]
    few = [] if name == "logistic" else few
    options += few
    assert main(["reproduce", name, *options]) == 0, capfd.readouterr().err
    figure = FIGURES[name]
    methods = [METHODS[method].label for method in (few[1::2] or figure.methods)]
    drawn = " ".join(re.findall("<text[^>]*>([^<]*)<", (tmp_path / f"figure-{name}.svg").read_text()))
    for words in (
        figure.title,
        "0.05 % of the data",
        "1 seed instead of 5",
        "at most 1 step",
        *methods,
        *figure.datasets,
    ):
        assert words in drawn
    assert (tmp_path / f"figure-{name}.png").stat().st_size > 10_000
    for dataset in figure.datasets:
        rows = read_rows(tmp_path / f"figure-{name}" / dataset / "results.csv")
        assert [row["step"] for row in rows] == ["0", "1"] * len(methods)


def test_full_scale_is_the_paper_s_setting():
    assert Scale() == Scale(epochs=10, seeds=5, fraction=1.0, batch_size=128, max_steps=None)
    assert Scale().reductions() == ""
    assert Scale(4, 1, 0.02, 32).reductions() == (
        "2 % of the data, 4 epochs instead of 10, 1 seed instead of 5, batches of 32 instead of 128"
    )
    assert Scale(epochs=1, max_steps=1).reductions() == "1 epoch instead of 10, at most 1 step"
    for figure in FIGURES.values():
        assert figure.quick.reductions()
        assert {"adam", "adamx-paper", "adambs", "adamcb-paper"} <= set(figure.methods)


def test_figures_have_names_and_numbers():
    assert figure_names("all") == list(FIGURES)
    assert [figure_names(str(number))[0] for number in range(1, 10)] == list(FIGURES)
    assert NUMBERS["6"] == "logistic"


def test_an_unknown_figure_is_an_error_that_lists_the_known(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "10"])
    assert ended.value.code == 2
    assert "`FIGURE` must be one of 1, 2, mlp, cnn, vgg, logistic, resnet18" in capsys.readouterr().err


@needs_data
def test_one_dataset_of_a_figure_is_enough(tmp_path, capfd, here):
    few = ["--steps", "1", "--fraction", "0.0005", "--batch-size", "4", "--seeds", "1", "--method", "adam"]
    assert main(["reproduce", "1", "--dataset", "mnist", *few, "--out", str(tmp_path)]) == 0, capfd.readouterr().err
    assert [place.name for place in (tmp_path / "figure-1").iterdir()] == ["mnist"]
    assert "cifar10" not in (tmp_path / "figure-1.svg").read_text()


def test_a_dataset_that_the_figure_has_not_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "vgg", "--dataset", "mnist"])
    assert "`--dataset` must be one of 'cifar10', got --dataset='mnist'" in capsys.readouterr().err


@needs_data
@pytest.mark.slow
def test_runs_that_a_file_has_are_not_repeated(tmp_path, capfd, here):
    rows = tmp_path / "rows"
    few = ["--fraction", "0.0005", "--batch-size", "4", "--dataset", "mnist", "--rows", str(rows), "--jobs", "1"]

    def reproduce(out, *options):
        assert main(["reproduce", "1", *few, *options, "--out", str(tmp_path / out)]) == 0, capfd.readouterr().err
        return read_rows(tmp_path / out / "figure-1" / "mnist" / "results.csv")

    adam = ("--steps", "2", "--method", "adam")
    first = reproduce("first", *adam, "--seeds", "1")
    again = reproduce("again", *adam, "--seeds", "2", "--method", "adamcb")
    assert again[:2] == first  # to the last digit, seconds included: seed 0 was read, not run
    assert len(again) == 8
    kept = read_rows(rows / "mlp-mnist-runs.csv")
    assert {(row["method"], row["seed"]) for row in kept} == {(m, s) for m in ("adam", "adamcb") for s in ("0", "1")}
    assert {row["max_steps"] for row in kept} == {"2"}
    assert [row["num_draws"] for row in kept] == ["2"] * 8

    longer = reproduce("longer", "--steps", "3", "--method", "adam", "--seeds", "1")
    assert [row["step"] for row in longer] == ["0", "3"]  # other settings: another run, in the same file
    assert len(read_rows(rows / "mlp-mnist-runs.csv")) == 10


@needs_data
def test_a_file_of_other_columns_is_refused(tmp_path, capfd, here):
    (tmp_path / "mlp-mnist-runs.csv").write_text("method,seed\nadam,0\n")
    few = ["--steps", "1", "--fraction", "0.0005", "--batch-size", "4", "--dataset", "mnist", "--method", "adam"]
    assert main(["reproduce", "1", *few, "--rows", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "must have the columns epochs, fraction, batch_size" in capfd.readouterr().err
