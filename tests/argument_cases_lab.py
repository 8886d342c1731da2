"""The lab: what each argument of its public functions may be. (Its classes stand with the others.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch

from adamcb.lab import Comparison, Task, compare, load_task, metrics
from adamcb.lab.commands import compare as commands_compare
from tests.argument_case import Case, dataset, model
from tests.argument_kinds import Kind, integer, nothing_else, optional


def no_comparison(*_: Any, **__: Any) -> Comparison:
    """Return a comparison that holds nothing."""
    folder = Path("comparison")
    folder.mkdir(exist_ok=True)
    (folder / "results.csv").write_text("method")
    return Comparison(folder, {}, [], [], "", {})


def checked(task: Any, methods: Any = ("adam",), seeds: Any = 1, out: Any = None, jobs: Any = None) -> Comparison:
    """Call `compare`, whose runs take seconds, without the runs."""
    with mock.patch.object(commands_compare, "run_comparison", no_comparison):
        return compare(task, methods, seeds, out, jobs)


def loaded(task: Any, data_dir: Any = None) -> Task:
    """Call `load_task`, whose errors name the option that the reference is for."""
    return load_task(task, data_dir)


def a_place(value: Any) -> bool | None:
    return None if isinstance(value, str) and value else False


def rows(value: Any) -> bool | None:
    return None if isinstance(value, torch.Tensor) else False


OUTPUTS: dict[str, Kind] = {"outputs": rows, "targets": rows}
METRICS = (
    "accuracy", "average_precision", "roc_auc", "log_loss", "calibration_error", "rmse", "perplexity",
    "relative_l2_error",
)  # fmt: skip

LAB_CASES = {
    "lab.compare": Case(
        checked,
        {
            "task": nothing_else,
            "methods": nothing_else,
            "seeds": integer(1, 10**6),
            "out": optional(a_place),
            "jobs": optional(integer(1, 10**15)),
        },
        lambda: {"task": Task("mine", model, dataset(), dataset())},
    ),
    "lab.load_task": Case(
        loaded, {"task": nothing_else, "data_dir": optional(a_place)}, lambda: {"task": "heavy-tails"}
    ),
    "Comparison.save": Case(
        Comparison.save,
        {"out": a_place},
        lambda: {"out": "kept"},
        no_comparison,
        state=lambda comparison: sorted(comparison.folder.rglob("*")),
    ),
    **{
        f"metrics.{name}": Case(
            getattr(metrics, name),
            OUTPUTS,
            lambda: {"outputs": torch.tensor([0.5, -0.5]), "targets": torch.tensor([1, 0])},
        )
        for name in METRICS
    },
}
