"""Rows for other tools: what each of them is told, and what is said where one is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adamcb.lab.errors import LabError
from adamcb.lab.output.logs import LOGS, check_logs, open_logs
from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Finished, Note
from tests.lab.commands import read_rows

CONFIG = {"dataset": "digits", "model": "mlp", "batch_size": 8, "lr": 0.1, "schedule": "cosine", "epochs": 2}
ROW = {"epoch": 1, "step": 10, "seconds": 0.5, "train_loss": 0.25, "test_loss": float("nan")}
LOGGED = {"epoch": 1, "seconds": 0.5, "train_loss": 0.25}


def log(name: str, folder: Path) -> None:
    """Two runs, side by side; the second does not finish."""
    with open_logs([name], folder, CONFIG) as listen:
        for seed in (0, 1):
            listen(Progress("adam", seed, 5, 20, 0, 0.5))  # between two evaluations there is no row
            listen(Progress("adam", seed, 10, 20, 1, 0.5, ROW))
        listen(Note("hear, hear"))
        listen(Finished("adam", 0))


def test_csv_has_a_line_for_each_row_as_it_comes(tmp_path: Path) -> None:
    log("csv", tmp_path)
    log("csv", tmp_path)  # going on appends
    lines = read_rows(tmp_path / "log.csv")
    assert len(lines) == 4
    assert lines[1] == {
        "method": "adam",
        "seed": "1",
        "step": "10",
        "epoch": "1",
        "seconds": "0.5",
        "train_loss": "0.25",
    }


def test_wandb_has_a_run_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def init(**settings: Any) -> Any:
        name = settings["name"]
        told.append((name, settings["group"], settings["config"]["seed"], settings["reinit"]))
        return SimpleNamespace(
            log=lambda row, step: told.append((name, step, row)), finish=lambda: told.append((name, "finished"))
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    log("wandb", tmp_path)
    for seed in (0, 1):
        name = f"adam-seed{seed}"
        mine = [entry[1:] for entry in told if entry[0] == name]
        assert mine == [("mlp on digits", seed, "create_new"), (10, LOGGED), ("finished",)]


def test_mlflow_has_a_run_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    experiments: list[str] = []

    class Client:
        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7") if name in experiments else None

        def create_experiment(self, name: str) -> str:
            experiments.append(name)
            return "7"

        def create_run(self, place: str, run_name: str) -> Any:
            assert place == "7"
            return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

        def log_param(self, run: str, name: str, value: Any) -> None:
            told.append((run, name, value))

        def log_metric(self, run: str, name: str, value: float, step: int) -> None:
            told.append((run, name, value, step))

        def set_terminated(self, run: str) -> None:
            told.append((run, "finished"))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    log("mlflow", tmp_path)
    assert experiments == ["mlp on digits"]
    mine = [entry[1:] for entry in told if entry[0] == "adam-seed1"]
    assert ("batch_size", 8) in mine
    assert ("seed", 1) in mine
    assert mine[-4:] == [*((name, value, 10) for name, value in LOGGED.items()), ("finished",)]


def test_tensorboard_has_a_folder_for_each_run(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log("tensorboard", tmp_path)
    for seed in (0, 1):
        events = reading.EventAccumulator(str(tmp_path / "tensorboard" / f"adam-seed{seed}")).Reload()
        assert [(event.step, event.value) for event in events.Scalars("train_loss")] == [(10, 0.25)]


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_logs(["csv"])
    for name in LOGS[1:]:
        with pytest.raises(LabError, match=rf"`--log {name}` needs {name}.*pip install '.\[{name}\]' in a clone"):
            check_logs(["csv", name])


def test_a_log_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"`--log csv` failed: \[Errno 2\] No such file or directory: '.*log.csv'"):
        log("csv", tmp_path / "gone")

    def refuse(**settings: Any) -> Any:
        raise KeyError("no account")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse))
    with pytest.raises(LabError, match="`--log wandb` failed: KeyError: 'no account'"):
        log("wandb", tmp_path)


def test_a_log_that_there_is_not_is_named() -> None:
    with pytest.raises(LabError, match=r"`--log` must be one of csv, .*, got 'cvs'. Did you mean 'csv'\?"):
        check_logs(["csv", "cvs"])
