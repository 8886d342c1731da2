"""The options that say how to run, not what: their one check, for all commands that have them."""

from __future__ import annotations

import argparse
from pathlib import Path


def check_running(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with what is wrong with `--jobs` or `--data-dir`, if anything is."""
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"`--jobs` must be at least 1, got {options.jobs}.")
    if options.data_dir is not None and not Path(options.data_dir).is_dir():
        parser.error(f"`--data-dir` must be an existing folder, got {options.data_dir!r}.")
