"""The files of a result folder: written whole or not at all.

Rows are dicts. results.csv has `RESULT_COLUMNS`, selection.csv `SELECTION_COLUMNS`; one folder a run in `.runs` holds
what resuming needs, and at the end the run's rows as `done.json`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from adamcb.lab.errors import LabError
from adamcb.lab.experiment import COMPARED
from adamcb.lab.watch import QUANTILES

try:
    import fcntl
except ImportError:  # not on Windows, where two commands at once are not noticed
    fcntl = None

RUNS = ".runs"
MEASURES = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
RESULT_COLUMNS = ("method", "seed", "epoch", "step", "seconds", *MEASURES)
READINGS = ("second_moment", "effective_sample_size", "coverage", "largest_weight", *QUANTILES)
SELECTION_COLUMNS = ("method", "seed", "epoch", "step", *READINGS)
# What a folder that is no result folder must not hold, for it would be overwritten.
OUTPUTS = ("results.csv", "selection.csv", "summary.csv", "summary.md", "report.html")
_UNFINISHED = ".unfinished-"
_OPTION_NAMES = {"methods": "--method", "max_steps": "--steps", "files": "the file of --model or --method"}

Row = dict[str, Any]


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place to write to, beside `path`, which takes the name of `path` once all is written."""
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = Path(name)
    try:
        yield written
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        written.chmod(0o666 & ~mask)  # mkstemp lets nobody else read
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all. Numbers are read back exactly."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows whole or not at all; None becomes an empty cell. Numbers are read back exactly."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, or raise `LabError` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is damaged: {error}.") from error


def read_csv(path: Path) -> list[Row]:
    """Return the rows of results.csv or selection.csv, with numbers as numbers and empty cells as None."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _parse(name, cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def _parse(name: str, cell: str) -> Any:
    if name == "method" or cell == "":
        return cell or None
    return int(cell) if name in ("seed", "epoch", "step") else float(cell)


class ResultFolder:
    """A folder that holds the results of one experiment, and that one command at a time writes to.

    Raises:
        LabError: The folder is in use, holds results of another configuration, or cannot be written to.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self._refuse_others()
        try:
            (path / RUNS).mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_error:
                self._lock = on_error.enter_context((path / RUNS / "lock").open("w"))
                self._take_lock()
                self._refuse_others()  # again, now that nobody else can write
                self._sweep()
                write_json(path / "config.json", config)
                on_error.pop_all()
        except OSError as error:
            raise LabError(f"Results cannot be written to {path}: {error}.") from error

    def _take_lock(self) -> None:
        # Held as long as the file is open; a killed process holds nothing.
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LabError(f"Another adamcb is writing to {self.path}; give another --out.") from error

    def _refuse_others(self) -> None:
        known = self.path / "config.json"
        if not known.is_file():
            foreign = [name for name in OUTPUTS if (self.path / name).exists()]
            if foreign:
                raise LabError(f"{self.path} holds {foreign[0]}, but is no result folder; give another --out.")
            return
        before = read_json(known)
        for name in COMPARED:
            if before.get(name) != self.config[name]:
                option = _OPTION_NAMES.get(name, "--" + name.replace("_", "-"))
                raise LabError(
                    f"{self.path} holds results of another configuration: {option} was {_worded(before.get(name))} "
                    f"and is now {_worded(self.config[name])}. Give another --out, or the same options."
                )

    def _sweep(self) -> None:
        """Remove what a killed process was writing."""
        for pattern in (f"**/{_UNFINISHED}*", f"{RUNS}/*/.checkpoint.pt.*.tmp"):
            for leftover in self.path.glob(pattern):
                leftover.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def run(self, method: str, seed: int) -> Path:
        """Return the folder of one run."""
        return run_folder(self.path, method, seed)

    def done(self, method: str, seed: int) -> bool:
        """Return whether a run is complete."""
        return (self.run(method, seed) / "done.json").is_file()

    def gather(self) -> tuple[list[Row], list[Row], list[str]]:
        """Return the rows of results.csv, those of selection.csv, and a note for every run that diverged."""
        results: list[Row] = []
        selection: list[Row] = []
        notes: list[str] = []
        for method in self.config["methods"]:
            for seed in self.config["seeds"]:
                done = read_json(self.run(method, seed) / "done.json")
                results += [{"method": method, "seed": seed, **row} for row in done["results"]]
                selection += [{"method": method, "seed": seed, **row} for row in done["selection"]]
                if done["diverged"]:
                    notes.append(f"{method} with seed {seed} diverged: {done['diverged']}")
        return results, selection, notes


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Return where a run keeps what resuming needs."""
    return folder / RUNS / f"{method}-seed{seed}"


def _worded(value: Any) -> str:
    if isinstance(value, list):
        return str(len(value)) if value and isinstance(value[0], int) else ", ".join(map(str, value))
    return str(value)
