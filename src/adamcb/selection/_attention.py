"""Which batches are worth measuring: all of them while choosing pays, else one now and then."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb import _checks
from adamcb._jit import jit
from adamcb.selection._moment import SecondMoment

_SUMS = ("scores", "squares", "count")
_COUNTS = ("draws", "batches", "samples", "samples_above")


class Attention:
    """Stops measuring where choosing does not pay, and starts again when that changes.

    Two numbers decide, both second moments divided by that of uniform sampling. *Reached* is what the learned rates
    give now, `SecondMoment.ratio`. *Best* is what rates in proportion to the scores would give: (mean score)² ÷ mean
    squared score.

    Measuring stops when *best* is above `worth` after `patience` batches: the scores are as good as equal. It also
    stops when *reached* was above `worth` throughout the last of three epochs or more: the scores differ, but what a
    sample scored once does not tell what it scores next. (One rare sample lifts *reached* for some batches only.) From
    then on one batch in `every` is measured. Measuring starts again when *best* falls to `surprise` of the highest that
    it was since.

    Args:
        num_samples: n, for the length of an epoch.
        worth: A ratio above this is not worth measuring for.
        every: While measuring rests, one batch in this many is measured.
        patience: How many batches are measured before anything is decided.
        surprise: How far *best* must fall to start again.

    Attributes:
        is_awake: Whether every batch is measured.
    """

    memory = 0.9

    def __init__(
        self,
        num_samples: int,
        *,
        worth: float = 0.95,
        every: int = 16,
        patience: int = 50,
        surprise: float = 0.8,
    ) -> None:
        self.num_samples, self.worth, self.every = num_samples, worth, every
        self.patience, self.surprise = patience, surprise
        self.is_awake = True
        # Moving averages of what a batch tells of Σ score, Σ score² and n.
        self._sums = (0.0, 0.0, 0.0)
        self._best_before = 1.0  # the highest since measuring stopped
        # Draws so far; batches and samples measured since measuring started; samples since *reached* is above `worth`.
        self._draws = self._batches = self._samples = self._samples_above = 0

    @property
    def listens(self) -> bool:
        """Whether to measure the batch that was drawn last."""
        return self.is_awake or self._draws % self.every == 0

    @property
    def best(self) -> float:
        """What rates in proportion to the scores would give; 1 if all scores are 0."""
        scores, squares, count = self._sums
        return scores * scores / (squares * count) if squares > 0.0 else 1.0

    def note_draw(self) -> None:
        """Count a draw."""
        self._draws += 1

    def note_scores(self, scores: np.ndarray, draw_probs: np.ndarray, moment: SecondMoment) -> bool:
        """Take note of a measured batch. Return whether measuring stops with it."""
        self._batches += 1
        self._samples += len(scores)
        self._sums = _averaged(self._sums, scores, draw_probs, self.memory)
        if self.is_awake:
            self._samples_above = self._samples_above + len(scores) if moment.ratio > self.worth else 0
            return self._consider_rest()
        self._best_before = max(self._best_before, self.best)
        if self.best < self.surprise * self._best_before:
            self.is_awake, self._batches, self._samples, self._samples_above = True, 0, 0, 0
        return False

    def _consider_rest(self) -> bool:
        tried = self._samples >= 3 * self.num_samples and self._samples_above >= self.num_samples
        if self._batches < self.patience or not (tried or self.best > self.worth):
            return False
        self.is_awake, self._best_before = False, self.best
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue."""
        counts = {name: getattr(self, f"_{name}") for name in _COUNTS}
        sums = dict(zip(_SUMS, self._sums, strict=True))
        return {"is_awake": self.is_awake, "best_before": self._best_before, **sums, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        self.check_state(state)
        self.is_awake, self._best_before = state["is_awake"], state["best_before"]
        self._sums = (state["scores"], state["squares"], state["count"])
        self._draws, self._batches, self._samples, self._samples_above = (state[name] for name in _COUNTS)

    @staticmethod
    def check_state(state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        saved = state if isinstance(state, dict) else {}
        _checks.boolean(f"{name}['is_awake']", saved.get("is_awake"))
        for key in ("best_before", *_SUMS):
            _checks.real(f"{name}['{key}']", saved.get(key), low=0.0)
        for key in _COUNTS:
            _checks.integer(f"{name}['{key}']", saved.get(key), low=0)


@jit
def _averaged(sums, scores, draw_probs, memory):
    """Return the moving averages, one batch later. They start at 0; ratios of them are not affected."""
    total = squares = count = 0.0
    for j in range(len(scores)):
        total += scores[j] / draw_probs[j]
        squares += scores[j] * scores[j] / draw_probs[j]
        count += 1.0 / draw_probs[j]
    new = 1.0 - memory
    return memory * sums[0] + new * total, memory * sums[1] + new * squares, memory * sums[2] + new * count
