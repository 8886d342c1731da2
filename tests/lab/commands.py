"""The command line as users meet it: a process of its own."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from adamcb.lab.commands import compare
from adamcb.lab.runs.workers import run_here
from tests.patience import patience

# The smallest comparison that shows a bandit beside a baseline.
SMALL = ("--dataset", "digits", "--method", "adam", "--method", "adamcb", "--seeds", "2", "--epochs", "3")
# Columns that differ from run to run.
CLOCKS = ("seconds", "wall_seconds")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "adamcb", *map(str, arguments)]


def run(*arguments: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `adamcb` and return what it printed, and its exit code."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=patience(240.0),
        check=False,
        env={**os.environ, **(env or {})},
        **options,
    )


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start `adamcb` in a process group of its own and open to Ctrl-C, as a terminal would."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a shell starts in the background ignores it, and so would all that is started from there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@contextlib.contextmanager
def runs_here() -> Iterator[None]:
    """Do runs in this process: one of their own imports torch, which takes longer than they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "run_all", lambda job, assignments, jobs, listen: run_here(job, assignments, listen))
        yield


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(120.0)
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def read_rows(path: Path, *, without: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return the rows of a CSV file as text, so that equal means equal to the last digit."""
    with path.open(newline="") as file:
        return [{name: cell for name, cell in row.items() if name not in without} for row in csv.DictReader(file)]


def processes_of_group(group: int) -> dict[int, float]:
    """Return the processes of a group that are alive, with the processor seconds that each has had."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
