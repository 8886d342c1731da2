"""The options that say how to run, not what: their one check, for all commands that have them."""

from __future__ import annotations

import argparse
from pathlib import Path


def place_to_write(text: str) -> Path:
    """Return the path of a folder or file to write; for `type=` of `--out`."""
    if not text:
        raise argparse.ArgumentTypeError("must name a place, got an empty path.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"must be a path of Unicode characters, got {text!r}.") from error
    return Path(text)


def check_running(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with what is wrong with `--jobs` or `--data-dir`, if anything is."""
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"`--jobs` must be at least 1, got {options.jobs}.")
    if options.data_dir is not None and not Path(options.data_dir).is_dir():
        parser.error(f"`--data-dir` must be an existing folder, got {options.data_dir!r}.")
