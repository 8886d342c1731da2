"""What a task computes before training, in a few numbers: they tell two tasks of one name apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from adamcb._seeds import derived_seed
from adamcb.lab.seeds import GLOBAL
from adamcb.lab.tasks.task import Task, fetch, few_indices, initial_model, to_device

KEYS = ("parameters", "first_losses", "first_scores")
# Numbers of other threads and other machines differ by far less, those of another loss by more.
_TOLERANCE = 1e-3


def fingerprint(task: Task, device: str) -> dict[str, Any]:
    """Return, by `KEYS`, what the runs of two tasks must agree on to belong together.

    `parameters` stands for the names and shapes in the model of seed 0. `first_losses` are its losses of a few samples;
    None if they are not the same when they are computed again, as with random crops that torch does not draw.
    `first_scores` is the name of the task's scores, or what its function makes of these losses; None: it has none.
    """
    models = [initial_model(task, 0, device) for _ in range(2)]
    once, again = (_first_losses(task, model, device) for model in models)
    losses = once if same_numbers(once, again) else None
    return dict(zip(KEYS, (_names_and_shapes(models[0]), losses, _first_scores(task, losses)), strict=True))


def same_numbers(one: Any, other: Any) -> bool:
    """Return whether two values are equal; lists of numbers, up to what threads and machines make of them."""
    if not (_are_numbers(one) and _are_numbers(other) and len(one) == len(other)):
        return one == other
    least = 1e-6 * max(map(abs, (*one, *other)))
    return bool(np.allclose(one, other, rtol=_TOLERANCE, atol=least, equal_nan=True))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(each, float) for each in value)


def _names_and_shapes(model: nn.Module) -> str:
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:12]


def _first_losses(task: Task, model: nn.Module, device: str) -> list[float]:
    """Return the losses of a few samples: of both splits as they are evaluated, then as they are trained on."""
    found = []
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(0, GLOBAL))
        for role, training in (("test", False), ("train", False), ("train", True)):
            samples = getattr(task, role)
            batch = to_device(fetch(samples, few_indices(samples)), device)
            model.train(training)
            with torch.set_grad_enabled(training):
                found.extend(task.losses(model, batch).tolist())
    return _rounded(found)


def _first_scores(task: Task, losses: list[float] | None) -> str | list[float] | None:
    if task.scores is None or isinstance(task.scores, str):
        return task.scores
    return None if losses is None else _rounded(task.scores(torch.tensor(losses)).tolist())


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
