"""Feedback on its way back from the device: copied without waiting, applied a set number of steps later."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adamcb.selection import Draw
from adamcb.training._ranks import check_same_draws

_TENSORS = ("norms", "losses", "overflowed")


class Report(NamedTuple):
    """What one step of the optimizers brought. Its tensors are on the CPU, perhaps still being copied there.

    Attributes:
        draws: The draws of its batches; more than one if gradients were accumulated.
        norms: float[mK], the gradient norms of their samples. None: nothing is measured.
        losses: float[mK], where they could not be checked without waiting for the device.
        overflowed: bool[], with a GradScaler: whether it skipped the step.
        indices: int64[mK], with several ranks: what they say that they trained on.
        copied: The device's event after the copies; None if there is nothing to wait for.
    """

    draws: tuple[Draw, ...]
    norms: Tensor | None
    losses: Tensor | None = None
    overflowed: Tensor | None = None
    indices: Tensor | None = None
    copied: Any = None

    def wait(self) -> Report:
        """Return the report once its tensors have arrived.

        Raises:
            RuntimeError: If the ranks did not train on the same draws.
        """
        if self.copied is not None:
            self.copied.synchronize()
        if self.indices is not None:
            check_same_draws(self.draws, self.indices)
        return self

    def read(self, age: int) -> list[tuple[Draw, np.ndarray]]:
        """Return each draw with its norms, float64[K]; none of them if the step overflowed.

        Raises:
            FloatingPointError: If a norm or a loss is not finite.
        """
        self.wait()
        if self.losses is not None:
            refuse_nonfinite("loss", self.losses.detach().double().numpy(), self.draws, age)
        if self.norms is None:
            return []
        norms = self.norms.detach().numpy().astype(np.float64)  # by NumPy: for so few numbers, torch takes longer
        if self.overflowed is None:
            refuse_nonfinite("gradient norm", norms, self.draws, age)
        elif bool(self.overflowed) or not np.isfinite(norms).all():
            return []
        parts = (norms,) if len(self.draws) == 1 else norms.reshape(len(self.draws), -1)
        return list(zip(self.draws, parts, strict=True))


class LateFeedback:
    """A queue between backward and selection that is `delay` steps long.

    Args:
        delay: Its length.
        apply: Called with a draw and its norms when they are due.
        check: Raises what `apply` would, and changes nothing.
    """

    def __init__(
        self, delay: int, apply: Callable[[Draw, np.ndarray], None], check: Callable[[Draw, np.ndarray], Any]
    ) -> None:
        self.delay, self._apply, self._check = delay, apply, check
        self._waiting: deque[Report] = deque()

    def send(
        self,
        draws: Sequence[Draw],
        norms: Tensor | None,
        losses: Tensor | None = None,
        overflowed: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        """Send the report of a step on its way, and apply what was sent `delay` steps ago.

        A report that cannot be used is dropped whole, and its error raised: nothing of it is applied.
        """
        self._waiting.append(_start_copy(tuple(draws), norms, losses, overflowed, indices))
        while len(self._waiting) > self.delay:
            parts = self._waiting.popleft().read(age=len(self._waiting))
            if len(parts) > 1:  # one alone is checked where it is applied
                for draw, values in parts:
                    self._check(draw, values)
            for draw, values in parts:
                self._apply(draw, values)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what is still on its way, checked no sooner than it would have been."""
        return [
            {
                "draws": [draw.state_dict() for draw in report.draws],
                **{name: getattr(report, name) for name in _TENSORS},
            }
            for report in map(Report.wait, self._waiting)
        ]

    def load_state_dict(self, state: Any, *, num_samples: int, batch_size: int) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        if not isinstance(state, list):
            raise ValueError(f"`state['late']` must be a list, got {type(state).__name__}.")
        self._waiting = deque([_unpack(entry, num_samples, batch_size) for entry in state])


def _start_copy(draws: tuple[Draw, ...], *tensors: Tensor | None) -> Report:
    """Return the report, with the copies to the CPU begun but not awaited."""
    far = [tensor.device for tensor in tensors if tensor is not None and not tensor.is_cpu]
    if not far:
        return Report(draws, *tensors)
    host = [None if tensor is None else tensor.to("cpu", non_blocking=True) for tensor in tensors]
    copied = torch.Event(far[0])
    copied.record(torch.accelerator.current_stream(far[0]))
    return Report(draws, *host, copied=copied)


def _unpack(entry: Any, num_samples: int, batch_size: int) -> Report:
    if not isinstance(entry, dict) or not {"draws", *_TENSORS} <= set(entry):
        raise ValueError(f"`state['late']` must hold dicts with the keys draws, {', '.join(_TENSORS)}.")
    draws = tuple(Draw.from_state(draw, num_samples=num_samples, batch_size=batch_size) for draw in entry["draws"])
    for name in ("norms", "losses"):
        if entry[name] is not None and tuple(entry[name].shape) != (batch_size * len(draws),):
            rule = f"be one number for each of {batch_size * len(draws)} samples"
            raise ValueError(f"`state['late']['{name}']` must {rule}, got shape {tuple(entry[name].shape)}.")
    return Report(draws, *(entry[name] for name in _TENSORS))


def refuse_nonfinite(what: str, values: np.ndarray, draws: Sequence[Draw], age: int = 0) -> None:
    """Raise unless all values are finite, naming the samples whose are not.

    Args:
        what: What the values are.
        values: float64[mK].
        draws: The m draws of these samples.
        age: How many steps were made since.
    """
    if math.isfinite(values.sum()):
        return
    bad = np.flatnonzero(~np.isfinite(values))  # none, if only the sum is too large
    if not len(bad):
        return
    indices = np.concatenate([draw.indices for draw in draws])
    first = ", ".join(f"{indices[j]} ({values[j]})" for j in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    late = f" That was {age} steps ago (feedback_delay={age}): the model was trained on it." if age else ""
    raise FloatingPointError(
        f"The {what} of every sample must be finite, got samples {first}{more}; in brackets the {what}.{late}"
    )
