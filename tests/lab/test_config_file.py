"""Options from a file: what counts, what is refused, and that a run writes a file that repeats it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from adamcb.lab.commands.cli import build_parser, main
from adamcb.lab.commands.config import apply_config, config_text
from adamcb.lab.errors import LabError
from adamcb.lab.experiment import Experiment, given_options
from adamcb.lab.methods import Method
from tests.lab.commands import CLOCKS, read_rows


def parsed(path: Path, *arguments: str) -> argparse.Namespace:
    options = build_parser().parse_args(["compare", *arguments])
    apply_config(path, options)
    return options


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        'dataset = "digits"\nmodel = "logistic"\nmethod = ["adam", "adamcb"]\nseeds = 2\nlr = 1\n'
        'batch_size = 64\nsteps = 9\nlog = "csv"\ndata-dir = "data"\njobs = 1\nout = "there"\n'
    )
    return path


def test_file_gives_what_the_command_line_does_not(file: Path) -> None:
    options = parsed(file, "--seeds", "5", "--method", "adamx")
    assert given_options(options) == {
        "dataset": "digits",
        "model": "logistic",
        "methods": ("adamx",),
        "seeds": 5,
        "batch_size": 64,
        "lr": 1.0,
        "max_steps": 9,
    }
    assert (options.log, options.data_dir, options.jobs, options.out) == (["csv"], "data", 1, Path("there"))


def test_task_and_dataset_replace_one_another(file: Path) -> None:
    options = parsed(file, "--task", "protein")
    assert (options.task, options.dataset, options.model) == ("protein", None, None)
    file.write_text('task = "protein"\n')
    options = parsed(file, "--dataset", "mnist")
    assert (options.task, options.dataset) == (None, "mnist")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", r"must hold options of `adamcb compare`, got 'epoch'. Did you mean 'epochs'\?"),
        ("evaluations = 3", "got 'evaluations'"),
        ("seeds = 1.5", "`seeds` in .* must be a whole number, got 1.5"),
        ("seeds = true", "`seeds` in .* must be a whole number, got True"),
        ('lr = "fast"', "`lr` in .* must be a number, got 'fast'"),
        (f"lr = 1{'0' * 400}", "`lr` in .* must be a finite number, got lr of 1329 bits"),
        ("model = 3", "`model` in .* must be text, got 3"),
        ("method = [1]", r"`method` in .* must be a list of names, got \[1\]"),
        ("seeds = ", "must be TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(LabError, match=message):
        parsed(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="`--config` must name a file that can be read, got .*absent.toml: No such file"):
        parsed(tmp_path / "absent.toml")


def test_written_file_reads_back_as_the_same_experiment(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for experiment in (
        Experiment(),
        Experiment(task='odd "näme".py:task', methods=("adam",), lr=1e-5, weight_decay=0.1, min_batch_size=4),
    ):
        text = config_text(experiment, data_dir="some/where", logs=["csv", "wandb"])
        assert text is not None
        path.write_text(text, encoding="utf-8")
        options = parsed(path)
        assert Experiment(**given_options(options)) == experiment
        assert (options.data_dir, options.log) == ("some/where", ["csv", "wandb"])
    assert config_text(Experiment(methods=(Method("mine"),))) is None


def test_every_run_writes_a_file_that_repeats_it(tmp_path: Path, here: None) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    small = ("--model", "logistic", "--method", "adam", "--seeds", "1", "--steps", "6", "--log", "csv")
    assert main(["compare", *small, "--out", str(one)]) == 0
    assert "\nlr = 0.001\n" in (one / "run.toml").read_text()
    assert main(["compare", "--config", str(one / "run.toml"), "--out", str(two)]) == 0
    results = [read_rows(tmp_path / name / "results.csv", without=CLOCKS) for name in ("one", "two")]
    assert results[0] == results[1]
    assert (tmp_path / "two" / "run.toml").read_text() == (tmp_path / "one" / "run.toml").read_text()
    assert len(read_rows(tmp_path / "two" / "log.csv")) == len(results[1])
