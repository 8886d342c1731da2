"""Batches between `weigh` and learning, and a check that the loop does its part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils import get_total_norm

from adamcb._torch_compat import call_after_backward
from adamcb._warn import warn_user
from adamcb.selection import Draw


class Weighed:
    """A batch whose losses were weighed.

    Its hook on the losses holds this object, and this object holds no graph: nothing here keeps a graph alive.

    Attributes:
        draw: The draw of these losses; with several ranks, this rank's part.
        loss: float[], what `weigh` returned.
        losses: float[k]. None: they were checked, and nobody keeps them.
        begun: What the scoring needs of this batch.
        arrived: float[k], the gradient that arrived at each loss: the factor times whatever the loop did to the loss.
            None: no backward pass has reached the losses yet.
        is_done: Whether that backward pass came to its end. One that raised an error measured only some layers.
        largest_gradient: float[], the largest entry of any parameter's gradient; None if `parameters` is empty.
    """

    __slots__ = ("arrived", "begun", "draw", "is_done", "largest_gradient", "loss", "losses", "parameters")

    def __init__(
        self, draw: Draw, loss: Tensor, losses: Tensor | None, begun: Any, parameters: Sequence[Tensor]
    ) -> None:
        self.draw, self.loss, self.losses, self.begun = draw, loss, losses, begun
        self.parameters = parameters
        self.arrived: Any = None
        self.is_done = False
        self.largest_gradient: Tensor | None = None

    def note_gradient(self, gradient: Tensor) -> None:
        """Take note of the gradient at the losses, at the beginning of the backward pass."""
        self.arrived = gradient.detach() if self.arrived is None else self.arrived + gradient.detach()
        call_after_backward(self._finish)

    def _finish(self) -> None:
        self.is_done = True
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if gradients:
            self.largest_gradient = get_total_norm(gradients, norm_type=math.inf)


class UsageCheck:
    """Notices a loop that leaves `weigh`, its result or `backward` out, and says so once.

    It looks every `patience` batches, and at the end of an epoch. A loop may skip some batches, and a
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

    def note_unweighed(self) -> None:
        """Warn that a batch went backward without its weights."""
        advice = "went backward on the plain losses. Go backward on what `weigh` returns"
        self._say(f"the last batch {advice}; its samples are chosen unequally, and the gradient is biased otherwise.")

    def note_epoch_end(self) -> None:
        """Warn if nothing was weighed, or nothing went backward, since the last look."""
        advice = None
        if self._taken and not self._weighed:
            advice = "`weigh` was not called. Go backward on `loader.weigh(losses)`, with one loss per sample"
        elif self._weighed and not self._backward:
            advice = "no backward pass reached the losses. Go backward on what `weigh` returns"
        if advice:
            self._say(f"in the last {self._taken} batches {advice}; nothing is learned otherwise.")
        self._taken = self._weighed = self._backward = 0

    def _say(self, what: str) -> None:
        if not self._said:
            self._said = True
            warn_user(f"AdaptiveLoader: {what}")
