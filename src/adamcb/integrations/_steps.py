"""The batches whose gradients a framework adds up before it steps."""

from __future__ import annotations

from torch import Tensor

from adamcb.selection import Draw
from adamcb.training import AdamCB


class StepBatches:
    """The batches between two steps of a framework's optimizer, as many as there are.

    Their number is settled when the first of them is weighed, from how many are to come. They are fewer than the
    framework is set to accumulate at the end of an epoch, if it steps early there; where training was resumed in the
    middle of a step; and where batches were given up.

    Attributes:
        number: How many batches this step has, or the last one had.
        given_up: Whether batches were given up, and none was weighed since.
    """

    def __init__(self, adamcb: AdamCB) -> None:
        self._adamcb = adamcb
        self.number = 1
        self.given_up = False

    def __len__(self) -> int:
        """How many batches of this step were weighed."""
        return len(self._adamcb._weighed)

    def weigh(self, losses: Tensor, left: int, *, draw: Draw | None = None) -> Tensor:
        """Return the weighted sum of the losses of a batch, divided by the number of batches of this step.

        Args:
            losses: As in `AdamCB.weigh`.
            left: How many batches the framework still adds up before it steps, this one included.
            draw: As in `AdamCB.weigh`.
        """
        if not len(self):
            self.number = left
        loss = self._adamcb.weigh(losses, draw=draw, accumulate=self.number)
        self.given_up = False
        return loss

    def give_up(self) -> None:
        """Forget the batches of this step and their gradients: they are neither stepped on nor learned from."""
        self._adamcb.give_up()
        self._adamcb.model.zero_grad()  # the optimizers are the framework's
        self.given_up = True
