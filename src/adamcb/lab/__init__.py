"""The lab: compare ways of choosing batches on any problem (extra: `adamcb[lab]`).

`compare(task)` trains a `Task` with several methods and seeds, and says in words which of them to use. A run passes
through the subpackages in this order: tasks, methods, runs, results, output; commands are the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adamcb.lab.commands.compare import Comparison, compare
    from adamcb.lab.errors import LabError
    from adamcb.lab.methods import Method
    from adamcb.lab.tasks import metrics
    from adamcb.lab.tasks.load import load_task
    from adamcb.lab.tasks.metrics import Metric
    from adamcb.lab.tasks.task import Task

__all__ = ["Comparison", "LabError", "Method", "Metric", "Task", "compare", "load_task", "metrics"]

# Imported when they are asked for: a worker needs no figures, and the library no lab.
_PLACES = {
    "Comparison": "commands.compare",
    "LabError": "errors",
    "Method": "methods",
    "Metric": "tasks.metrics",
    "Task": "tasks.task",
    "compare": "commands.compare",
    "load_task": "tasks.load",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "metrics":
        return importlib.import_module("adamcb.lab.tasks.metrics")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"adamcb.lab.{_PLACES[name]}"), name)
