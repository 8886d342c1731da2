"""A look at a task before training begins: what would go wrong hours later goes wrong now, in one sentence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adamcb.lab.errors import LabError
from adamcb.lab.tasks.task import Task, fetch, few_indices, sample_indices, to_device

# How many samples metrics are tried on; one that cannot do with these is tried on all of them.
_SOME = 512


def check_task(task: Task, device: str = "cpu") -> None:
    """Build the model twice, and try loss and metrics on a few samples.

    Raises:
        LabError: Something is not as `Task` says; the message names it.
    """
    with torch.random.fork_rng(), _same_lengths(task):
        model = _try(task, "model", task.model)
        if not isinstance(model, nn.Module):
            raise LabError(f"`model` of {task.name} must return an nn.Module, got a {type(model).__name__}.")
        _check_new(task, model)
        model.to(device)
        _check_loss(task, model, device)
        _check_metrics(task, model, device)


@contextlib.contextmanager
def _same_lengths(task: Task) -> Iterator[None]:
    """Raise if a dataset has another length after its samples were looked at."""
    before = {role: len(getattr(task, role)) for role in ("train", "test")}
    try:
        yield
    finally:  # it may be the reason for what failed
        for role, length in before.items():
            if (now := len(getattr(task, role))) != length:
                raise LabError(f"`{role}` of {task.name} must keep its length, got {length} at first and {now} later.")


def _try(task: Task, name: str, function: Any, *arguments: Any) -> Any:
    """Call a function of the task's; what it raises becomes a message that names it."""
    try:
        return function(*arguments)
    except Exception as error:
        kind = type(error).__name__
        raise LabError(f"`{name}` of {task.name} must work on its samples, but raised {kind}: {error}") from error


def _check_new(task: Task, model: nn.Module) -> None:
    again = _try(task, "model", task.model)
    shared = {id(parameter) for parameter in model.parameters()} & {id(other) for other in again.parameters()}
    if again is model or shared:
        raise LabError(
            f"`model` of {task.name} must build a new model each time, got the same one twice: the second run would "
            "train what the first one trained."
        )


def _check_loss(task: Task, model: nn.Module, device: str) -> None:
    indices = few_indices(task.train)
    batch = to_device(_try(task, "train", fetch, task.train, indices), device)
    model.train()
    losses = _try(task, "loss", task.losses, model, batch)
    if not isinstance(losses, Tensor):
        raise LabError(f"`loss` of {task.name} must return a tensor, got a {type(losses).__name__}.")
    if losses.shape != (len(indices),):
        hint = ' Compute it with reduction="none".' if losses.dim() == 0 else ""
        rule = f"return one loss per sample, shape ({len(indices)},) here"
        raise LabError(f"`loss` of {task.name} must {rule}, got shape {tuple(losses.shape)}.{hint}")
    if not losses.requires_grad:
        raise LabError(f"`loss` of {task.name} must depend on the model's parameters, got losses without a gradient.")


def _check_metrics(task: Task, model: nn.Module, device: str) -> None:
    model.eval()
    for role in ("test", "train") if task.metrics else ():
        size = len(getattr(task, role))
        outputs, targets = _predictions(task, role, model, sample_indices(size, _SOME).tolist(), device)
        for name, metric in task.metrics.items():
            with contextlib.suppress(Exception):
                if math.isfinite(metric(outputs, targets)):
                    continue
            # Perhaps these samples alone lack a class; then all of them decide.
            everything = _predictions(task, role, model, list(range(size)), device)
            value = _try(task, f"metrics[{name!r}]", metric, *everything)
            if not math.isfinite(value):
                rule = f"return a finite number for `{role}`"
                raise LabError(f"`metrics[{name!r}]` of {task.name} must {rule}, got {value}.")


def _predictions(task: Task, role: str, model: nn.Module, indices: list[int], device: str) -> tuple[Tensor, Tensor]:
    parts = []
    with torch.no_grad():
        for start in range(0, len(indices), 128):
            batch = to_device(_try(task, role, fetch, getattr(task, role), indices[start : start + 128]), device)
            parts.append(_try(task, "predict", _pair, task, model, batch))
    outputs, targets = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(targets)


def _pair(task: Task, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    outputs, targets = task.predictions(model, batch)
    return outputs.cpu(), targets.cpu()
