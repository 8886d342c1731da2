"""What bandits share: a feedback rule with what it has learned, and batches that are as small as their noise allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._feedback import Feedback, as_feedback, check_feedback_state
from adamcb.selection._moment import SecondMoment
from adamcb.selection._selection import Selection
from adamcb.selection._sizes import BatchSizes


class Bandit(Selection):
    """A selection whose weights change by a feedback rule.

    A class names it before the base that says how weights are stored, so that its `__init__` and its hooks for what is
    saved add to those of that base.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        feedback: How scores change weights.
        options: What else the other base takes.
    """

    def __init__(self, num_samples: int, batch_size: int, *, feedback: Feedback | str, **options: Any) -> None:
        self.feedback = as_feedback(feedback)
        super().__init__(num_samples, batch_size, **options)
        self._feedback_state = self.feedback.start()

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        values = super().check(draw, scores)
        self.feedback.check(values)
        return values

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "feedback": dict(self._feedback_state)}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        check_feedback_state(self.feedback, state["feedback"])

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._feedback_state = dict(state["feedback"])


class SizedBandit(Bandit):
    """A bandit whose batches are as small as is no noisier than K uniform samples. A subclass sets `moment`."""

    moment: SecondMoment

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None,
        size_multiple: int,
        **options: Any,
    ) -> None:
        super().__init__(num_samples, batch_size, min_batch_size=min_batch_size, **options)
        self.size_multiple = _checks.integer("size_multiple", size_multiple, low=1, high=self.batch_size)
        self._sizes = BatchSizes(self.min_batch_size, self.batch_size, multiple=self.size_multiple)
        self.min_batch_size = self._sizes.ladder[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """All sizes that a batch may have, smallest first."""
        return self._sizes.ladder

    @property
    def needed_size(self) -> float:
        """How many chosen samples make the next batch as noisy as K uniform ones."""
        return self._sizes.needed(self.moment)

    def plan_size(self, needed: float) -> None:
        """Let the next batch be as large as if `needed_size` were this."""
        self._sizes.plan(needed)

    def _probs_in_full_batch(self, draw: Draw) -> np.ndarray:
        """Return the probabilities of a draw as if it had K samples, so that batches of all sizes can be compared."""
        return draw.probs * (self.batch_size / len(draw))

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "moment": self.moment.state_dict(), "sizes": self._sizes.state_dict()}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        self.moment.check_state(state["moment"], "state['moment']")
        self._sizes.check_state(state["sizes"], "state['sizes']")

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.moment.load_state_dict(state["moment"])
        self._sizes.load_state_dict(state["sizes"])
