"""Feedback on its way from the device to the selection: copied without waiting, and due some batches later."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adamcb._jit import jit
from adamcb.selection import Draw, Selection
from adamcb.training._ranks import Heard, check_same_draw

MOST_WAITING = 10_000
_TENSORS = ("measured", "arrived", "losses", "largest_gradient")


class Report(NamedTuple):
    """What one batch brought. Its tensors are on the CPU, or are still being copied there.

    Attributes:
        draw: The draw of the batch; with several ranks, the draw of all of them.
        measured: float[k], what the scores are made of. None: nothing is measured.
        arrived: float[k], the gradient that arrived at each loss.
        losses: float[k]. None: they were checked, and nobody keeps them.
        largest_gradient: float[], the largest entry of the gradients, if they were looked at.
        heard: With several ranks: the gathered values of all of them; `wait` unpacks them into the columns above.
        copied: The device's event after the copies. None: there is nothing to wait for.
    """

    draw: Draw
    measured: Tensor | None = None
    arrived: Tensor | None = None
    losses: Tensor | None = None
    largest_gradient: Tensor | None = None
    heard: Heard | None = None
    copied: Any = None

    def wait(self) -> Report:
        """Return the report once its tensors have arrived.

        Raises:
            RuntimeError: If the ranks did not train on the same draw.
        """
        if self.copied is not None:
            self.copied.synchronize()
        if self.heard is None:
            return self
        indices, (measured, arrived, losses) = self.heard.columns()
        check_same_draw(self.draw, indices)
        return self._replace(measured=measured, arrived=arrived, losses=losses, heard=None)


class FeedbackQueue:
    """Holds reports for `delay` batches, so that the host need not wait for the device; then makes scores of them.

    Args:
        divides: Whether a score is what was measured divided by the gradient that arrived at its loss.
        factor: What `weigh` multiplies loss weights by: the number of ranks.

    Attributes:
        is_scaled: Whether the loop multiplied the loss of the last measured batch by more than 1, as a GradScaler does;
            True before any batch is read.
        is_unweighed: Whether equal gradients arrived at the losses of the last measured batch, though their weights
            differ: the loop went backward on their mean, and not on what `weigh` returned.
    """

    def __init__(self, *, divides: bool = True, factor: float = 1.0) -> None:
        self._divides, self._factor = divides, float(factor)
        self._waiting: deque[Report] = deque()
        self.is_scaled, self.is_unweighed = True, False

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, draw: Draw, heard: Heard | None = None, **tensors: Tensor | None) -> None:
        """Start the copies of a report's tensors to the CPU, and put it into the queue."""
        self._waiting.append(_start_copy(draw, heard, tensors))

    def due(self, delay: int) -> tuple[Draw, np.ndarray | None, np.ndarray | None] | None:
        """Return draw, scores and losses of the oldest report if more than `delay` are waiting; None if none is due.

        Scores are float64[k]; None if there are none, or nothing can be learned from them. A report that cannot be used
        is dropped, and its error raised.

        Raises:
            FloatingPointError: If a loss is not finite, or a score without a GradScaler.
        """
        if len(self._waiting) <= delay:
            return None
        report = self._waiting.popleft().wait()
        losses, age = None, len(self._waiting)
        if report.losses is not None:
            losses = _array(report.losses)
            refuse_nonfinite("loss", losses, report.draw, age)
        return report.draw, self._scores(report, age), losses

    def _scores(self, report: Report, age: int) -> np.ndarray | None:
        """Return the scores of a report, float64[k].

        Under a GradScaler, gradients may overflow. The scaler then skips the step, and nothing is learned from it.
        """
        if report.measured is None or report.arrived is None:
            return None
        measured = _array(report.measured)
        arrived = _array(report.arrived).astype(measured.dtype, copy=False)
        scores = np.empty(len(measured))
        told = _score(measured, arrived, report.draw.loss_weights, self._factor, self._divides, scores)
        self.is_scaled, self.is_unweighed = told
        if not self.is_scaled:
            refuse_nonfinite("score", scores, report.draw, age)
            return scores
        largest = 0.0 if report.largest_gradient is None else float(report.largest_gradient)
        return scores if _all_finite(scores) and math.isfinite(largest) else None

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
        if len(state) > MOST_WAITING:
            raise ValueError(f"`state['feedback']` must hold at most {MOST_WAITING} reports, got {len(state)}.")
        self._waiting = deque([_unpack(entry, selection) for entry in state])


def _start_copy(draw: Draw, heard: Heard | None, tensors: dict[str, Tensor | None]) -> Report:
    """Return the report, with the copies to the CPU begun but not awaited."""
    told = [*tensors.values(), None if heard is None else heard.bits]
    far = [tensor.device for tensor in told if tensor is not None and not tensor.is_cpu]
    if not far:
        return Report(draw, **tensors, heard=heard)
    host = {name: None if tensor is None else tensor.to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    if heard is not None:
        heard = heard._replace(bits=heard.bits.to("cpu", non_blocking=True))
    copied = torch.Event(far[0])
    copied.record(torch.accelerator.current_stream(far[0]))
    return Report(draw, **host, heard=heard, copied=copied)


def _array(tensor: Tensor) -> np.ndarray:
    """Return the numbers in NumPy's hands, where so few of them are quicker to compute with."""
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()).numpy()


@jit
def _score(measured, arrived, loss_weights, factor, divides, scores):
    """Write the scores; return whether the loop multiplied a loss by more than 1, and whether it left the weights out.

    A sample at whose loss no gradient arrived added nothing: its score is 0. Rounding of half precision is below 1 %.
    """
    is_scaled = False
    least, most, lightest, heaviest = np.inf, 0.0, np.inf, 0.0
    for j in range(len(scores)):
        scale = abs(arrived[j])
        if not divides:
            scores[j] = measured[j]
        elif scale == 0.0:
            scores[j] = 0.0
        else:
            scores[j] = measured[j] / scale
        if scale > 1.01 * factor * loss_weights[j]:
            is_scaled = True
        if scale > 0.0:
            least, most = min(least, scale), max(most, scale)
            lightest, heaviest = min(lightest, loss_weights[j]), max(heaviest, loss_weights[j])
    return is_scaled, most <= 1.001 * least and heaviest > 1.1 * lightest


@jit
def _all_finite(values):
    """Return whether all values are finite; for so few, in a third of the time that NumPy takes."""
    for value in values:
        if not np.isfinite(value):
            return False
    return True


def _unpack(entry: Any, selection: Selection) -> Report:
    if not isinstance(entry, dict) or not {"draw", *_TENSORS} <= set(entry):
        raise ValueError(f"`state['feedback']` must hold dicts with the keys draw, {', '.join(_TENSORS)}.")
    draw = selection.check_draw(selection.restored_draw(entry["draw"], whole=False, name="state['feedback']['draw']"))
    for name in _TENSORS:
        value, shape = entry[name], () if name == "largest_gradient" else (len(draw),)
        if value is None:
            continue
        if not (isinstance(value, Tensor) and value.is_floating_point() and tuple(value.shape) == shape):
            got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"`state['feedback']['{name}']` must be a tensor of floats of shape {shape}, got {got}.")
    return Report(draw, **{name: entry[name] for name in _TENSORS})


def refuse_nonfinite(what: str, values: np.ndarray, draw: Draw, age: int = 0) -> None:
    """Raise unless all values are finite, naming the samples whose are not.

    Args:
        what: What the values are.
        values: float[k].
        draw: The draw of these samples.
        age: How many batches were trained on since.
    """
    if _all_finite(values):
        return
    bad = np.flatnonzero(~np.isfinite(values))
    first = ", ".join(f"{draw.indices[j]} ({values[j]})" for j in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    late = f" That was {age} batches ago (feedback_delay={age}): the model was trained on it." if age else ""
    raise FloatingPointError(
        f"The {what} of every sample must be finite, got samples {first}{more}; in brackets the {what}.{late}"
    )
