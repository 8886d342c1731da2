"""Loss and metrics on all samples of a dataset."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamcb.lab.tasks.models import forward_layout
from adamcb.lab.tasks.task import Task, fetch, to_device

# Small enough for the processor's caches: of a CNN, 1000 at a time take twice as long. Rows of a table are smaller.
EVALUATION_BATCH, ROWS = 128, 2048
# How long a run goes on between two looks at whether to report, to save or to stop.
LOOK_SECONDS = 0.2
# By how many times its size a loss must have grown to be called diverged. Chance costs at most ln(classes), and an
# honest run that starts near its end may well end a little higher.
GROWTH, LEAST_SIZE = 10.0, 1.0


def evaluate(
    task: Task, model: nn.Module, samples: Any, device: torch.device, look: Callable[[], None]
) -> dict[str, float]:
    """Return the mean loss and every metric of a dataset; `look` is called between batches.

    Raises:
        FloatingPointError: The loss is not finite; no metric is asked for then.
    """
    loss, parts = 0.0, []
    model.eval()
    layout = forward_layout(model)
    next_look = time.monotonic() + LOOK_SECONDS
    size = ROWS if type(samples) is TensorDataset and samples.tensors[0].dim() == 2 else EVALUATION_BATCH
    for start in range(0, len(samples), size):
        batch = fetch(samples, range(start, min(start + size, len(samples))))
        with torch.no_grad():
            losses, outputs, targets = _predict(task, model, to_device(batch, device, layout))
        loss += losses.double().sum().item()
        if outputs is not None:
            parts.append((outputs, targets))
        if time.monotonic() >= next_look:
            look()
            next_look = time.monotonic() + LOOK_SECONDS
    if not math.isfinite(loss):
        raise FloatingPointError("the loss on all data is not finite any more.")
    found = {"loss": loss / len(samples)}
    if task.metrics:
        outputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        found |= {name: metric(outputs, targets) for name, metric in task.metrics.items()}
    return found


def refuse_divergence(losses: Sequence[float]) -> None:
    """Raise FloatingPointError if training ended far above where it began: more than 10 times the size of its loss.

    Args:
        losses: The training losses, the first of them before the first step. A size below 1 counts as 1, because a
            task may start at a loss of 0.
    """
    first, last = losses[0], losses[-1]
    if last - first > GROWTH * max(abs(first), LEAST_SIZE):
        raise FloatingPointError(
            f"the training loss ended at {last:.3g}, and it was {first:.3g} before the first step."
        )


def _predict(task: Task, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None, Any]:
    """Return losses, outputs and targets of a batch; no outputs where no metric needs them."""
    if task.is_plain:
        logits, labels = (part.cpu() for part in task.predictions(model, batch))
        return F.cross_entropy(logits, labels, reduction="none"), logits, labels
    losses = task.losses(model, batch)
    if not task.metrics:
        return losses, None, None
    outputs, targets = task.predictions(model, batch)
    return losses, outputs.cpu(), targets.cpu()
