"""The options that say how to run, not what: one definition and one check for all commands that have them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from adamcb.lab.paths import fault_of

# What file systems take, in bytes: for a path, and for each name in it.
_LONGEST_PATH, _LONGEST_NAME = 4095, 255


def place(text: str) -> str:
    """Return a path as it is, unless it can be none; for `type=` of an option."""
    fault = fault_of(text)
    if fault is not None:
        raise argparse.ArgumentTypeError(fault)
    return text


def place_to_write(text: str) -> Path:
    """Return the path of a folder or file to write; for `type=` of an option."""
    place(text)
    longest_name = max(len(os.fsencode(name)) for name in text.split(os.sep))
    if longest_name > _LONGEST_NAME or len(os.fsencode(text)) > _LONGEST_PATH:
        rule = f"be a path of at most {_LONGEST_PATH} bytes, and its names of at most {_LONGEST_NAME}"
        raise argparse.ArgumentTypeError(f"must {rule}, got {len(text)} letters.")
    return Path(text)


def folder_to_write(text: str) -> Path:
    """Return the path of a folder to write; it need not be there yet."""
    folder = place_to_write(text)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"must be a folder, got {text!r}, which is none.")
    return folder


def file_to_write(text: str) -> Path:
    """Return the path of a file to write; it need not be there yet."""
    file = place_to_write(text)
    if os.path.isdir(file):
        raise argparse.ArgumentTypeError(f"must be a file, got {text!r}, which is a folder.")
    return file


_OPTIONS: dict[str, dict[str, Any]] = {
    "--jobs": {"type": int, "metavar": "N", "help": "processes, of one thread each (default: one a core)"},
    "--out": {"type": folder_to_write, "metavar": "DIR"},
    "--data-dir": {
        "type": place,
        "metavar": "DIR",
        "help": "where to look for data files first; then in $ADAMCB_DATA and the cache",
    },
    # For tests: how long to train between checkpoints.
    "--checkpoint-seconds": {"type": float, "default": 10.0, "help": argparse.SUPPRESS},
}


def add_running(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add options of `_OPTIONS` by name; `changes` are the arguments of `add_argument` that differ here."""
    for name in names:
        parser.add_argument(name, **{**_OPTIONS[name], **changes})


def check_running(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with what is wrong with `--jobs` or `--data-dir`, if anything is. A command may lack either."""
    jobs, data_dir = getattr(options, "jobs", None), getattr(options, "data_dir", None)
    if jobs is not None and jobs < 1:
        parser.error(f"`--jobs` must be at least 1, got {jobs}.")
    if data_dir is not None and not os.path.isdir(data_dir):  # unlike Path.is_dir, False for a name that is too long
        parser.error(f"`--data-dir` must be an existing folder, got {data_dir!r}.")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
