"""A look at a task before training begins: what would go wrong hours later goes wrong now, in one sentence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from adamcb.lab.errors import LabError
from adamcb.lab.tasks.task import Task, fetch, few_indices, sample_indices, to_device

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# How many samples metrics are tried on; one that cannot do with these is tried on all of them.
_SOME = 512
# How far a sample's loss may be from its loss in a batch of one, in parts of the largest: half precision rounds.
_ROUNDING = 5e-3


def check_task(task: Task, device: str = "cpu") -> None:
    """Build the model twice, and try loss and metrics on a few samples.

    Raises:
        LabError: Something is not as `Task` says; the message names it.
    """
    with torch.random.fork_rng(), same_lengths(task):
        model = _try(task, "model", task.model)
        if not isinstance(model, nn.Module):
            raise LabError(f"`model` of {task.name} must return an nn.Module, got a {type(model).__name__}.")
        _check_new(task, model)
        model.to(device)
        _check_loss(task, model, device)
        _check_loss_alone(task, model, device)
        _check_metrics(task, model, device)


@contextlib.contextmanager
def same_lengths(task: Task) -> Iterator[None]:
    """Raise LabError if a dataset has another length at the end than at the beginning."""
    before = {role: len(getattr(task, role)) for role in ("train", "test")}
    try:
        yield
    finally:  # it may be the reason for what failed
        for role, length in before.items():
            if (now := len(getattr(task, role))) != length:
                raise LabError(f"`{role}` of {task.name} must keep its length, got {length} at first and {now} later.")


def _try(task: Task, name: str, function: Any, *arguments: Any, where: str = "its samples") -> Any:
    """Call a function of the task's; what it raises becomes a message that names it."""
    try:
        return function(*arguments)
    except Exception as error:
        kind = type(error).__name__
        raise LabError(f"`{name}` of {task.name} must work on {where}, but raised {kind}: {error}") from error


def _check_new(task: Task, model: nn.Module) -> None:
    again = _try(task, "model", task.model)
    if again is model or _memory(model) & _memory(again):
        raise LabError(
            f"`model` of {task.name} must build a new model each time, got the same one twice, or two that share "
            "parameters or buffers: the second run would begin with what the first one trained."
        )


def _memory(model: nn.Module) -> set[int]:
    """Return where the parameters and buffers of a model are."""
    tensors = (tensor for tensor in (*model.parameters(), *model.buffers()) if not is_lazy(tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}  # 0: an empty one


def _check_loss(task: Task, model: nn.Module, device: str) -> None:
    """Try the loss on a few samples of both splits, as they are trained on and as they are evaluated."""
    model.train()
    losses = _losses(task, "train", model, few_indices(task.train), device)
    if not losses.requires_grad:
        raise LabError(f"`loss` of {task.name} must depend on the model's parameters, got losses without a gradient.")
    _check_scores(task, losses.detach())
    model.eval()
    with torch.no_grad():
        for role in ("train", "test"):
            _losses(task, role, model, few_indices(getattr(task, role)), device)


def _losses(task: Task, role: str, model: nn.Module, indices: list[int], device: str) -> Tensor:
    """Return the losses of these samples, or raise unless there is one finite number for each."""
    batch = to_device(_try(task, role, fetch, getattr(task, role), indices), device)
    losses = _try(task, "loss", task.losses, model, batch, where=f"the samples of `{role}`")
    if not isinstance(losses, Tensor):
        raise LabError(f"`loss` of {task.name} must return a tensor, got a {type(losses).__name__}.")
    if losses.shape != (len(indices),):
        rule = f"return one loss per sample, shape ({len(indices)},) here"
        raise LabError(f"`loss` of {task.name} must {rule}, got shape {tuple(losses.shape)}.{_hint(losses.dim() == 0)}")
    if not bool(losses.isfinite().all()):
        rule, worst = f"be finite for the samples of `{role}` before training", losses[~losses.isfinite()][0].item()
        raise LabError(f"`loss` of {task.name} must {rule}, got {worst}.")
    return losses


def _hint(reduced: bool) -> str:
    return ' Compute it with reduction="none".' if reduced else ""


def _check_loss_alone(task: Task, model: nn.Module, device: str) -> None:
    """Raise if a sample's loss depends on the samples beside it, as that of a mean which was expanded."""
    model.eval()
    indices = few_indices(task.train)
    with torch.no_grad():
        once, again = (_losses(task, "train", model, indices, device) for _ in range(2))
        most = _ROUNDING * once.abs().max()
        if _looks_around(model) or bool(((once - again).abs() > most).any()):  # random: it is never the same
            return
        for index, among_others in zip(indices, once, strict=True):
            try:
                alone = _losses(task, "train", model, [index], device)[0]
            except LabError:  # the model does not take a single sample
                return
            if bool((alone - among_others).abs() > most):
                got = f"got {among_others:.4g} in a batch of {len(indices)} and {alone:.4g} in a batch of its own"
                raise LabError(f"`loss` of {task.name} must be the sample's alone, {got}.{_hint(True)}")


def _looks_around(model: nn.Module) -> bool:
    """Return whether a layer uses the statistics of the batch even in evaluation."""
    return any(isinstance(module, _BATCH_NORMS) and module.running_mean is None for module in model.modules())


def _check_scores(task: Task, losses: Tensor) -> None:
    if not callable(task.scores):
        return
    scores = _try(task, "scores", task.scores, losses, where="the losses")
    rule = f"`scores` of {task.name} must return a finite number at or above 0 for each loss"
    if not isinstance(scores, Tensor) or scores.shape != losses.shape:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise LabError(f"{rule}, got {got}.")
    if not bool((scores.isfinite() & (scores >= 0)).all()):
        raise LabError(f"{rule}, got {scores.tolist()}.")


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
