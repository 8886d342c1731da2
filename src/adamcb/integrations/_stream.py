"""The batches of an `AdamCB` as one stream, which a framework's loop cuts into epochs of its own."""

from __future__ import annotations

from collections.abc import Iterator

from adamcb.data import SelectedBatch
from adamcb.integrations._steps import StepBatches
from adamcb.training import AdamCB


class BatchStream:
    """Yields the batches of an `AdamCB`, epoch after epoch.

    A framework decides itself when its epoch ends, resumes in the middle of one, or asks for an iterator twice. So the
    position lives in the `AdamCB` alone: whoever takes the next batch gets the one after the last that was taken,
    whichever iterator it comes from. Nothing is drawn before it is asked for (but by the loader, for its workers).

    Attributes:
        trainer: The `AdamCB`.
        step: Those of its batches that the framework is about to step on.
        taken: How many batches were taken.
    """

    def __init__(self, trainer: AdamCB) -> None:
        self.trainer = trainer
        self.step = StepBatches(trainer)
        self._batches: Iterator[SelectedBatch] | None = None
        self.taken = 0

    def take(self) -> SelectedBatch:
        """Return the next batch."""
        if self._batches is None:
            self._batches = _epochs(self.trainer)
        try:
            batch = next(self._batches)
        except BaseException:
            self._batches = None  # a generator that raised is over; the next call starts where this one failed
            raise
        self.taken += 1
        return batch

    def close(self) -> None:
        """Let go of the loader's workers and of the model. What was learned can still be looked at."""
        self._batches = None
        self.trainer.close()


def _epochs(trainer: AdamCB) -> Iterator[SelectedBatch]:
    while True:
        yield from trainer
