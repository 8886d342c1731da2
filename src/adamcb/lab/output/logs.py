"""The rows of results.csv for other tools, as they come in: a file, TensorBoard, Weights & Biases, or MLflow."""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from adamcb._checks import nearest
from adamcb.lab.errors import LabError, describe
from adamcb.lab.experiment import title_of
from adamcb.lab.results.columns import Row
from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Event, Finished, Note

# What a log needs beside the lab: the package, which is an extra of the same name.
PACKAGES = {"csv": None, "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
LOGS = tuple(PACKAGES)


class RunLog(Protocol):
    """Where the rows of one run go."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Hear that there will be no more."""
        ...


def check_logs(names: Sequence[str]) -> None:
    """Raise `LabError` if there is no such log, or what it needs is not installed."""
    for name in names:
        if name not in PACKAGES:  # a file of options may hold anything
            raise LabError(f"`--log` must be one of {', '.join(LOGS)}, got {name!r}.{nearest(name, LOGS)}")
        package = PACKAGES[name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise LabError(f"`--log {name}` needs {package}, not installed here: pip install '.[{name}]' in a clone")


@contextlib.contextmanager
def open_logs(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> Iterator[Callable[[Event], None]]:
    """Give what writes events down. Every run of a comparison is a run of its own in the other tool."""
    logs: dict[tuple[str, str, int], RunLog] = {}

    def tell(name: str, event: Progress | Finished) -> None:
        run = (name, event.method, event.seed)
        if isinstance(event, Progress) and event.row is not None:
            if run not in logs:
                logs[run] = _OPEN[name](folder, config, event.method, event.seed)
            logs[run].write(event.step, _numbers(event.row))
        elif isinstance(event, Finished) and run in logs:
            logs.pop(run).close()

    def listen(event: Event) -> None:
        for name in names:
            if not isinstance(event, Note):
                with _named(name):
                    tell(name, event)

    try:
        yield listen
    finally:
        for (name, *_), log in logs.items():
            with _named(name):
                log.close()


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn an error of another tool, which may be any, into one that names the option."""
    try:
        yield
    except Exception as error:
        raise LabError(f"`--log {name}` failed: {describe(error)}") from error


def _numbers(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "step" and math.isfinite(value)}


class _CsvLog:
    """Appends to log.csv, a line at a time: results.csv is there only when all runs are done."""

    def __init__(self, folder: Path, config: Mapping[str, Any], method: str, seed: int) -> None:
        self.path, self.run = folder / "log.csv", {"method": method, "seed": seed}

    def write(self, step: int, row: Mapping[str, float]) -> None:
        line = {**self.run, "step": step, **row}
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(line))
            if new:
                writer.writeheader()
            writer.writerow(line)

    def close(self) -> None:
        pass


class _TensorBoardLog:
    """Writes event files, a folder for each run, below tensorboard/ in the result folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any], method: str, seed: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard" / f"{method}-seed{seed}"))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class _WandbLog:
    """Makes a run of Weights & Biases; project, mode and the rest come from its own environment variables."""

    def __init__(self, folder: Path, config: Mapping[str, Any], method: str, seed: int) -> None:
        self.run = importlib.import_module("wandb").init(
            group=title_of(config),
            name=f"{method}-seed{seed}",
            config={**config, "method": method, "seed": seed},
            dir=str(folder),
            reinit="create_new",  # runs are done side by side
        )

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self.run.log(dict(row), step=step)

    def close(self) -> None:
        self.run.finish()


class _MlflowLog:
    """Makes a run of MLflow, where its own environment variables say, in an experiment named after the comparison."""

    def __init__(self, folder: Path, config: Mapping[str, Any], method: str, seed: int) -> None:
        self.client = importlib.import_module("mlflow").MlflowClient()
        known = self.client.get_experiment_by_name(title_of(config))
        place = known.experiment_id if known else self.client.create_experiment(title_of(config))
        self.run = self.client.create_run(place, run_name=f"{method}-seed{seed}").info.run_id
        for name in ("batch_size", "lr", "schedule", "epochs"):
            self.client.log_param(self.run, name, config[name])
        self.client.log_param(self.run, "method", method)
        self.client.log_param(self.run, "seed", seed)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


_OPEN: dict[str, Callable[[Path, Mapping[str, Any], str, int], RunLog]] = {
    "csv": _CsvLog,
    "tensorboard": _TensorBoardLog,
    "wandb": _WandbLog,
    "mlflow": _MlflowLog,
}
