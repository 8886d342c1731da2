"""Feedback on its way from the device to the selection: copied without waiting, and due some batches later."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adamcb.selection import Draw, Selection
from adamcb.training._ranks import check_same_draw

_TENSORS = ("scores", "losses", "scaled", "largest_gradient")


class Report(NamedTuple):
    """What one batch brought. Its tensors are on the CPU, or are still being copied there.

    Attributes:
        draw: The draw of the batch; with several ranks, the draw of all of them.
        scores: float[k]. None: nothing is measured.
        losses: float[k]. None: they were checked, and nobody keeps them.
        scaled: bool[], whether the loop multiplied the loss by more than 1, as a GradScaler does.
        largest_gradient: float[], the largest entry of the gradients, if they were looked at.
        indices: int64[k], with several ranks: the samples that they say they trained on.
        copied: The device's event after the copies. None: there is nothing to wait for.
    """

    draw: Draw
    scores: Tensor | None
    losses: Tensor | None = None
    scaled: Tensor | None = None
    largest_gradient: Tensor | None = None
    indices: Tensor | None = None
    copied: Any = None

    def wait(self) -> Report:
        """Return the report once its tensors have arrived.

        Raises:
            RuntimeError: If the ranks did not train on the same draw.
        """
        if self.copied is not None:
            self.copied.synchronize()
        if self.indices is not None:
            check_same_draw(self.draw, self.indices)
        return self

    def read(self, age: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return scores, float64[k], and losses, float[k]; None for scores that nothing can be learned from.

        Under a GradScaler, gradients may overflow. The scaler then skips the step, and nothing is learned from it.

        Raises:
            FloatingPointError: If a loss is not finite, or a score without a GradScaler.
        """
        self.wait()
        losses = None
        if self.losses is not None:
            known = self.losses.dtype in (torch.float32, torch.float64)  # to NumPy, and as they are: it is quicker
            losses = (self.losses if known else self.losses.float()).numpy()
            refuse_nonfinite("loss", losses, self.draw, age)
        return self._read_scores(age), losses

    def _read_scores(self, age: int) -> np.ndarray | None:
        if self.scores is None:
            return None
        scores = self.scores.detach().numpy().astype(np.float64)  # by NumPy: for so few numbers, torch takes longer
        if self.scaled is not None and bool(self.scaled):
            largest = 0.0 if self.largest_gradient is None else float(self.largest_gradient)
            return scores if math.isfinite(scores.sum()) and math.isfinite(largest) else None
        refuse_nonfinite("score", scores, self.draw, age)
        return scores


class FeedbackQueue:
    """Holds reports for `delay` batches, so that the host need not wait for the device.

    Attributes:
        is_scaled: Whether the loss of the last measured batch that was read was scaled; True before any is read.
    """

    def __init__(self) -> None:
        self._waiting: deque[Report] = deque()
        self.is_scaled = True

    def __len__(self) -> int:
        return len(self._waiting)

    def send(
        self,
        draw: Draw,
        scores: Tensor | None,
        *,
        losses: Tensor | None = None,
        scaled: Tensor | None = None,
        largest_gradient: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        """Start the copies of a report to the CPU, and put it into the queue."""
        self._waiting.append(_start_copy(draw, scores, losses, scaled, largest_gradient, indices))

    def due(self, delay: int) -> tuple[Draw, np.ndarray | None, np.ndarray | None] | None:
        """Return draw, scores and losses of the oldest report if more than `delay` are waiting; None if none is due.

        A report that cannot be used is dropped, and its error raised.
        """
        if len(self._waiting) <= delay:
            return None
        report = self._waiting.popleft()
        scores, losses = report.read(age=len(self._waiting))
        if report.scaled is not None:
            self.is_scaled = bool(report.scaled)
        return report.draw, scores, losses

    def clear(self) -> None:
        """Forget what is on its way."""
        self._waiting.clear()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what is on its way; its values are checked when they are due, not now."""
        return [
            {"draw": report.draw.state_dict(), **{name: getattr(report, name) for name in _TENSORS}}
            for report in map(Report.wait, self._waiting)
        ]

    def load_state_dict(self, state: Any, *, selection: Selection) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        if not isinstance(state, list):
            raise ValueError(f"`state['feedback']` must be a list, got {type(state).__name__}.")
        self._waiting = deque([_unpack(entry, selection) for entry in state])


def _start_copy(draw: Draw, *tensors: Tensor | None) -> Report:
    """Return the report, with the copies to the CPU begun but not awaited."""
    far = [tensor.device for tensor in tensors if tensor is not None and not tensor.is_cpu]
    if not far:
        return Report(draw, *tensors)
    host = [None if tensor is None else tensor.to("cpu", non_blocking=True) for tensor in tensors]
    copied = torch.Event(far[0])
    copied.record(torch.accelerator.current_stream(far[0]))
    return Report(draw, *host, copied=copied)


def _unpack(entry: Any, selection: Selection) -> Report:
    if not isinstance(entry, dict) or not {"draw", *_TENSORS} <= set(entry):
        raise ValueError(f"`state['feedback']` must hold dicts with the keys draw, {', '.join(_TENSORS)}.")
    n, most = selection.num_samples, selection.batch_size
    draw = Draw.from_state(entry["draw"], num_samples=n, max_size=most, repeats=selection.repeats)
    shapes = {"scores": (len(draw),), "losses": (len(draw),), "scaled": (), "largest_gradient": ()}
    for name, shape in shapes.items():
        value = entry[name]
        if value is None:
            continue
        is_bool = name == "scaled"
        fits = isinstance(value, Tensor) and (value.dtype == torch.bool if is_bool else value.is_floating_point())
        if not fits or tuple(value.shape) != shape:
            got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            rule = f"be a tensor of {'bools' if is_bool else 'floats'} of shape {shape}"
            raise ValueError(f"`state['feedback']['{name}']` must {rule}, got {got}.")
    return Report(draw, *(entry[name] for name in _TENSORS))


def refuse_nonfinite(what: str, values: np.ndarray, draw: Draw, age: int = 0) -> None:
    """Raise unless all values are finite, naming the samples whose are not.

    Args:
        what: What the values are.
        values: float[k].
        draw: The draw of these samples.
        age: How many batches were trained on since.
    """
    if math.isfinite(values.sum()):
        return
    bad = np.flatnonzero(~np.isfinite(values))  # none, if only the sum is too large
    if not len(bad):
        return
    first = ", ".join(f"{draw.indices[j]} ({values[j]})" for j in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    late = f" That was {age} batches ago (feedback_delay={age}): the model was trained on it." if age else ""
    raise FloatingPointError(
        f"The {what} of every sample must be finite, got samples {first}{more}; in brackets the {what}.{late}"
    )
