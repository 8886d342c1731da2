"""Summaries by hand, figures by their looks, and pictures in the right order."""

import colorsys
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import adamcb
from adamcb.lab.commands.bench import run_benchmarks
from adamcb.lab.commands.inspect import Chosen, find_chosen, inspect_run
from adamcb.lab.errors import LabError
from adamcb.lab.output.figures import draw_comparison
from adamcb.lab.output.looks import LOOKS, look_of
from adamcb.lab.output.tables import markdown_table, terminal_tables
from adamcb.lab.results import whole_file, write_json
from adamcb.lab.results.summary import summarize, summary_columns

CONFIG = {
    "dataset": "digits",
    "model": "mlp",
    "methods": ["adam", "mine"],
    "labels": {"adam": "Adam", "mine": "Mine"},
    "seeds": [0, 1],
    "epochs": 2,
    "max_steps": None,
    "batch_size": 32,
    "lr": 0.001,
    "notes": ["A note."],
    "class_names": ["cat", "dog"],
}
# method, seed, training loss after each epoch
LOSSES = {
    ("adam", 0): (2.0, 1.0, 0.4),
    ("adam", 1): (2.0, 1.2, 0.6),
    ("mine", 0): (2.0, 0.4, 0.5),
    ("mine", 1): (2.0, 1.0, 0.7),
}


def rows() -> list[dict]:
    return [
        {
            "method": method,
            "seed": seed,
            "epoch": epoch,
            "step": 10 * epoch,
            "samples": 320 * epoch,
            "seconds": (2.0 if method == "mine" else 1.0) * epoch + seed,
            "train_loss": loss,
            "test_loss": loss + 0.1,
            "train_accuracy": 1.0 - loss / 4,
            "test_accuracy": 0.9 - loss / 4,
        }
        for (method, seed), losses in LOSSES.items()
        for epoch, loss in enumerate(losses)
    ]


def test_summary_is_what_one_gets_by_hand():
    adam, mine = summarize(rows(), CONFIG)
    assert set(adam) == set(summary_columns(CONFIG))
    assert adam["final_train_loss"] == pytest.approx(0.5)
    assert adam["final_train_loss_std"] == pytest.approx(0.1 * 2**0.5)
    assert mine["final_train_loss"] == pytest.approx(0.6)
    assert mine["best_train_loss"] == pytest.approx((0.4 + 0.7) / 2)
    assert mine["best_test_accuracy"] == pytest.approx(0.9 - 0.55 / 4)
    assert mine["final_test_accuracy"] == pytest.approx(0.9 - 0.6 / 4)
    assert (adam["seconds"], mine["seconds"]) == (2.5, 4.5)
    # With seed 0 Adam ends at 0.4, which `mine` reaches after one epoch; with seed 1 at 0.6, which it never does.
    assert (mine["reached_baseline"], mine["steps_to_baseline"], mine["seconds_to_baseline"]) == (1, 10.0, 2.0)
    assert (adam["reached_baseline"], adam["steps_to_baseline"]) == (2, 20.0)


def test_a_run_that_ended_early_counts_nowhere():
    short = [row for row in rows() if (row["method"], row["seed"]) != ("mine", 0) or row["epoch"] < 2]
    mine = summarize(short, CONFIG)[1]
    assert (mine["runs"], mine["final_train_loss"], mine["final_train_loss_std"]) == (1, 0.7, None)
    text = markdown_table(summarize(short, CONFIG), CONFIG)
    assert "| Mine (1 of 2 diverged) | 0.7000 |" in text
    none = summarize([row for row in rows() if row["method"] == "adam" or row["epoch"] == 0], CONFIG)[1]
    assert none["final_train_loss"] is None


def test_tables_show_mean_deviation_and_what_was_not_reached():
    summary = summarize(rows(), CONFIG)
    text = markdown_table(summary, CONFIG)
    assert "| Adam | 0.5000 ± 0.1414 | 0.5000 ± 0.1414 |" in text
    assert "| 4.5 | 10 (1/2) | 2.0 (1/2) |" in text
    for width in (200, 80):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(*terminal_tables(summary, CONFIG, width), sep="\n")
        shown = console.export_text()
        for words in ("Mine", "best 0.5500 ± 0.2121", "77.50 ± 3.54 %", "10 (1/2)", "training accuracy", "seconds"):
            assert words in shown, f"not to be read at {width} columns"


def test_figures_say_what_they_show_and_are_the_same_file_each_time(tmp_path):
    files = [path.read_bytes() for path in draw_comparison(tmp_path, rows(), CONFIG)]
    svg = (tmp_path / "epochs.svg").read_text()
    for words in ("mlp on digits", "A note.", "training loss", "test accuracy, %", "over 2 seeds", "Mine", "epoch"):
        assert words in svg
    assert "seconds of training" in (tmp_path / "seconds.svg").read_text()
    assert files == [path.read_bytes() for path in draw_comparison(tmp_path, rows(), CONFIG)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epochs.png",
        "epochs.svg",
        "seconds.png",
        "seconds.svg",
    ]


def test_methods_can_be_told_apart_without_color():
    strangers = [look_of(name, ["adam", "one", "two"]) for name in ("one", "two")]
    looks = [*LOOKS.values(), *strangers]
    assert len({look.marker for look in looks}) == len(looks)
    okabe_ito = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"}
    assert {look.color for look in looks} <= okabe_ito
    solid = [look.color for look in LOOKS.values() if look.dashes == "-"]
    for one, other in itertools.combinations(solid, 2):
        assert abs(lightness(one) - lightness(other)) > 0.2, "solid lines must differ in gray"


def lightness(color: str) -> float:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return colorsys.rgb_to_yiq(red, green, blue)[0]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fill_the_disk() -> None:
        with whole_file(path) as place:
            place.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "config.json", CONFIG)
    (tmp_path / "chosen").mkdir()
    np.savez(
        tmp_path / "chosen" / "mine-seed0.npz",
        index=np.array([7, 3, 9, 5]),
        count=np.array([50, 40, 30, 20]),
        label=np.array([0, 0, 1, 1]),
        prediction=np.array([0, 1, 1, 0]),
        loss=np.array([0.1, 2.0, 0.2, 3.0], dtype=np.float32),
        image=np.zeros((4, 6, 6, 3), dtype=np.uint8),
    )
    return tmp_path


def test_likely_label_errors_come_first(run_folder, capsys):
    assert inspect_run(run_folder, None, 0, None, Console(width=100)) == 0
    shown = capsys.readouterr().out
    numbers = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert numbers == ["3", "5", "7", "9"]
    assert (run_folder / "inspect-mine-seed0.png").read_bytes().startswith(b"\x89PNG")


def test_order_is_by_doubt_and_then_by_count():
    fields = {name: np.zeros(4) for name in ("index", "loss", "image")}
    chosen = Chosen(
        **fields,
        count=np.array([9, 8, 7, 7]),
        label=np.array([0, 0, 0, 0]),
        prediction=np.array([0, 1, 0, 2]),
        class_names=(),
    )
    assert chosen.order().tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("method", "seed", "message"),
    [
        ("adma", 0, "`--method` must be one of adam, mine"),
        ("adam", 0, "only methods with a bandit"),
        (None, 5, "seed 5"),
    ],
)
def test_what_cannot_be_inspected_is_named(run_folder, method, seed, message):
    with pytest.raises(LabError, match=message):
        find_chosen(run_folder, method, seed)
    with pytest.raises(LabError, match="has no config.json"):
        find_chosen(run_folder / "chosen", None, 0)


def test_a_benchmark_runs_from_the_checkout(capfd):
    assert run_benchmarks(["selection"], ["--help"]) == 0
    assert "usage" in capfd.readouterr().out
    with pytest.raises(LabError, match="has no benchmark nothing"):
        run_benchmarks(["nothing"], [])


def test_without_a_checkout_the_benchmarks_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(adamcb, "__file__", str(tmp_path / "site-packages" / "adamcb" / "__init__.py"))
    with pytest.raises(LabError, match="from a checkout of adamcb"):
        run_benchmarks(["selection"], [])
