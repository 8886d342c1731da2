"""`adamcb bench`: the repository's benchmarks, which an installed package does not carry, and those of the lab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import adamcb
from adamcb.lab.commands import budget, time_to_loss
from adamcb.lab.errors import LabError
from adamcb.lab.signals import raising

# Those that are part of the lab train for hours: they run if they are asked for alone.
LAB_BENCHMARKS = {time_to_loss.NAME: time_to_loss.main, budget.NAME: budget.main}

# Ctrl-C reaches the benchmark too, which shall end as quietly.
_RUN = """
import runpy, sys
from adamcb.lab.signals import end_on_the_spot
end_on_the_spot()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run_benchmarks(names: Sequence[str], options: Sequence[str]) -> int:
    """Run `python -m benchmarks.NAME` for each name, and return the first exit code that is not 0.

    Raises:
        LabError: There is no checkout, or it has no such benchmark.
    """
    if len(names) == 1 and names[0] in LAB_BENCHMARKS:
        return LAB_BENCHMARKS[names[0]](options)
    for name in LAB_BENCHMARKS.keys() & set(names):
        print(f"adamcb: {name} takes hours; ask for it by name.", file=sys.stderr)
    names = [name for name in names if name not in LAB_BENCHMARKS]
    root = find_checkout()
    modules = [name.replace("-", "_") for name in names]
    present = [module for module in modules if (root / "benchmarks" / f"{module}.py").is_file()]
    if not present:
        raise LabError(f"{root / 'benchmarks'} has no benchmark {', '.join(names)}.")
    for module in modules:
        if module not in present:
            print(f"adamcb: {root / 'benchmarks'} has no benchmark {module}; going on.", file=sys.stderr)
    with raising():  # `subprocess.run` ends what it runs then
        codes = [
            subprocess.run(
                [sys.executable, "-c", _RUN, f"benchmarks.{module}", *options], cwd=root, check=False
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
