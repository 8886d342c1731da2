"""`adamcb bench`: the repository's benchmarks, which an installed package does not carry, and time-to-loss."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import adamcb
from adamcb.lab.commands import time_to_loss
from adamcb.lab.errors import LabError


def run_benchmarks(names: Sequence[str], options: Sequence[str]) -> int:
    """Run `python -m benchmarks.NAME` for each name, and return the first exit code that is not 0.

    time-to-loss trains for hours and is part of the lab: it runs if it is asked for alone.

    Raises:
        LabError: There is no checkout, or it has no such benchmark.
    """
    if list(names) == [time_to_loss.NAME]:
        return time_to_loss.main(options)
    if time_to_loss.NAME in names:
        print(f"adamcb: {time_to_loss.NAME} takes hours; ask for it by name.", file=sys.stderr)
        names = [name for name in names if name != time_to_loss.NAME]
    root = find_checkout()
    modules = [name.replace("-", "_") for name in names]
    present = [module for module in modules if (root / "benchmarks" / f"{module}.py").is_file()]
    if not present:
        raise LabError(f"{root / 'benchmarks'} has no benchmark {', '.join(names)}.")
    for module in modules:
        if module not in present:
            print(f"adamcb: {root / 'benchmarks'} has no benchmark {module}; going on.", file=sys.stderr)
    # Some benchmarks import their neighbors by bare name.
    search = os.pathsep.join(filter(None, [str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]))
    codes = [
        subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *options],
            cwd=root,
            env={**os.environ, "PYTHONPATH": search},
            check=False,
        ).returncode
        for module in present
    ]
    return next((code for code in codes if code != 0), 0)


def find_checkout() -> Path:
    """Return the repository: the current folder, or the one that the package was imported from."""
    for root in (Path.cwd(), Path(adamcb.__file__).resolve().parents[2]):
        if (root / "benchmarks" / "__init__.py").is_file() and (root / "src" / "adamcb").is_dir():
            return root
    raise LabError("The benchmarks are in the repository, not in the package: run this from a checkout of adamcb.")
