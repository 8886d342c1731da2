"""A result folder, which belongs to one experiment and is written by one command at a time.

`.runs` has a folder for every run. It holds what resuming needs, and at the end the run's rows as `done.json`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from adamcb._files import DRAFT, sweep
from adamcb.lab.errors import LabError, writing_to
from adamcb.lab.experiment import COMPARED, option_of
from adamcb.lab.results.columns import Row
from adamcb.lab.results.files import read_json, write_json
from adamcb.lab.tasks.fingerprint import same_numbers

try:
    import fcntl
except ImportError:  # not on Windows, where two commands at once are not noticed
    fcntl = None

RUNS = ".runs"
# Without a config.json, a folder that holds one of these is somebody else's: we would overwrite it.
OUTPUTS = ("results.csv", "selection.csv", "summary.csv", "summary.md", "report.html")


class Gathered(NamedTuple):
    """What the runs of a folder left.

    Attributes:
        results: The rows of results.csv.
        selection: The rows of selection.csv.
        notes: One for every run that diverged.
        batches: By method, how many batches were chosen, and how many were drawn.
    """

    results: list[Row]
    selection: list[Row]
    notes: list[str]
    batches: dict[str, tuple[int, int]]


class ResultFolder:
    """A folder that holds the results of one experiment, and that one command at a time writes to.

    Raises:
        LabError: The folder is in use, holds results of another configuration, or cannot be written to.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        with writing_to(path):
            refuse_others(path, config)
            (path / RUNS).mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_error:
                self._lock = on_error.enter_context((path / RUNS / "lock").open("w"))
                self._take_lock()
                refuse_others(path, config)  # again, now that nobody else can write
                self._sweep()
                write_json(path / "config.json", config)
                on_error.pop_all()

    def _take_lock(self) -> None:
        # Held as long as the file is open; a killed process holds nothing.
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LabError(f"Another adamcb is writing to {self.path}; give another --out.") from error

    def _sweep(self) -> None:
        """Remove what a killed process was writing."""
        for folder in {leftover.parent for leftover in self.path.glob(f"**/{DRAFT}*")}:
            sweep(folder)

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def run(self, method: str, seed: int) -> Path:
        """Return the folder of one run."""
        return run_folder(self.path, method, seed)

    def done(self, method: str, seed: int) -> bool:
        """Return whether a run is complete."""
        return (self.run(method, seed) / "done.json").is_file()

    def gather(self) -> Gathered:
        """Return what the runs left."""
        found = Gathered([], [], [], {})
        for method in self.config["methods"]:
            for seed in self.config["seeds"]:
                done = read_json(self.run(method, seed) / "done.json")
                named = {"method": method, "seed": seed, "diverged": done["diverged"]}
                found.results.extend({**named, **row} for row in done["results"])
                found.selection.extend({"method": method, "seed": seed, **row} for row in done["selection"])
                chosen, drawn = found.batches.get(method, (0, 0))
                found.batches[method] = (chosen + done["num_chosen"], drawn + done["num_draws"])
                if done["diverged"]:
                    found.notes.append(f"{self.config['labels'][method]} with seed {seed} diverged: {done['diverged']}")
        return found


def refuse_others(path: Path, config: dict[str, Any]) -> None:
    """Raise LabError if a folder holds results of another configuration, or somebody else's."""
    known = path / "config.json"
    if not known.is_file():
        foreign = [name for name in OUTPUTS if (path / name).exists()]
        if foreign:
            raise LabError(f"{path} holds {foreign[0]}, but is no result folder; give another --out.")
        return
    before = read_json(known)
    for name in COMPARED:
        if not same_numbers(before.get(name), config[name]):
            was, now = _worded(before.get(name)), _worded(config[name])
            raise LabError(
                f"{path} holds results of another configuration: {option_of(name)} was {was} and is now "
                f"{now}. Give another --out, or the same options."
            )


def copy_results(folder: Path, config: dict[str, Any], place: Path) -> None:
    """Copy a result folder to one that is new, empty or holds the same comparison; no file is ever half-written.

    Raises:
        LabError: `place` holds something else.
    """
    if place.exists() and not (place.is_dir() and (not any(place.iterdir()) or (place / "config.json").is_file())):
        raise LabError(f"`out` must be a new or empty folder, or one of this comparison, got {place}.")
    refuse_others(place, config)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".adamcb-copy-", dir=place.parent) as beside:
        copied = Path(beside) / "copied"
        shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("lock", f"{DRAFT}*"))
        if not place.exists():
            copied.rename(place)
            return
        for file in sorted(file for file in copied.rglob("*") if file.is_file()):
            target = place / file.relative_to(copied)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Return where a run keeps what resuming needs."""
    return folder / RUNS / f"{method}-seed{seed}"


def _worded(value: Any) -> str:
    if isinstance(value, list):
        if value and isinstance(value[0], float):
            return ", ".join(map(str, value[:3])) + ", …"
        return str(len(value)) if value and isinstance(value[0], int) else ", ".join(map(str, value))
    return str(value)
