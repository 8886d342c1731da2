"""Batches between `weigh` and learning, and a check that the loop does its part."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from adamcb.selection import Draw


class Weighed:
    """A batch whose losses were weighed.

    Its hook on the losses holds this object, and this object holds no graph: nothing here keeps a graph alive.

    Attributes:
        draw: The draw of these losses; with several ranks, this rank's part.
        factors: float[k], what `weigh` multiplied the losses by.
        losses: float[k], where they could not be checked without waiting for the device or for other ranks.
        begun: What the scoring needs of this batch.
        arrived: float[k], the gradient that arrived at each loss: the factor times whatever the loop did to the loss.
            None: no backward pass has come by.
    """

    __slots__ = ("arrived", "begun", "draw", "factors", "losses")

    def __init__(self, draw: Draw, factors: Tensor, losses: Tensor | None, begun: Any) -> None:
        self.draw, self.factors, self.losses, self.begun = draw, factors, losses, begun
        self.arrived: Any = None

    def note_gradient(self, gradient: Tensor) -> None:
        """Take note of the gradient at the losses, at the beginning of the backward pass."""
        self.arrived = gradient.detach() if self.arrived is None else self.arrived + gradient.detach()

    def is_scaled(self) -> Tensor:
        """Return bool[], whether the loop multiplied the loss by more than 1. Rounding of half precision does not."""
        return (self.arrived.abs() > 1.01 * self.factors).any()


class UsageCheck:
    """Notices a loop that leaves `weigh` or `backward` out, and says so once.

    It looks at each run of `patience` batches, and at the end of an epoch. A loop may skip some batches, and a
    framework may take a few ahead.
    """

    patience = 16

    def __init__(self) -> None:
        self._said = False
        self._taken = self._weighed = self._backward = 0

    def note_taken(self) -> None:
        """Count a batch that is about to be taken."""
        if self._taken >= self.patience:
            self.note_epoch_end()
        self._taken += 1

    def note_weighed(self) -> None:
        """Count a batch that was weighed."""
        self._weighed += 1

    def note_backward(self) -> None:
        """Count a batch that went backward."""
        self._backward += 1

    def note_epoch_end(self) -> None:
        """Warn if nothing was weighed, or nothing went backward, since the last look."""
        advice = None
        if self._taken and not self._weighed:
            advice = "`weigh` was not called. Go backward on `loader.weigh(losses)`, with one loss per sample"
        elif self._weighed and not self._backward:
            advice = "no backward pass reached the losses. Go backward on what `weigh` returns"
        if advice and not self._said:
            self._said = True
            message = f"AdaptiveLoader: in the last {self._taken} batches {advice}; nothing is learned otherwise."
            warnings.warn(message, UserWarning, stacklevel=5)
        self._taken = self._weighed = self._backward = 0
