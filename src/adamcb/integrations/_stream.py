"""The batches of an `AdaptiveLoader` as one stream, which a framework's loop cuts into epochs of its own."""

from __future__ import annotations

from collections.abc import Iterator

from adamcb.data import SelectedBatch
from adamcb.training import AdaptiveLoader


class BatchStream:
    """Yields the batches of an `AdaptiveLoader`, epoch after epoch.

    A framework decides itself when its epoch ends, resumes in the middle of one, or asks for an iterator twice. So the
    position lives in the loader alone: whoever takes the next batch gets the one after the last that was taken,
    whichever iterator it comes from. Nothing is drawn before it is asked for (but by the loader, for its workers).

    Attributes:
        loader: The `AdaptiveLoader`.
        taken: How many batches were taken.
    """

    def __init__(self, loader: AdaptiveLoader) -> None:
        self.loader = loader
        self._batches: Iterator[SelectedBatch] | None = None
        self.taken = 0

    def take(self) -> SelectedBatch:
        """Return the next batch."""
        if self._batches is None:
            self._batches = _epochs(self.loader)
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
        self.loader.close()


def _epochs(loader: AdaptiveLoader) -> Iterator[SelectedBatch]:
    while True:
        yield from loader
