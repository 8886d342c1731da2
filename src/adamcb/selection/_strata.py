"""The strata that one rank holds: a stratified design whose strata are shared out among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._selection import Selection
from adamcb.selection._stratum import Stratum


class Strata(Selection):
    """Draws from some of the V strata of a dataset; sample i belongs to stratum i mod V.

    Rank r of W holds the strata with s mod W = r. Every stratum draws K/V samples of every batch and learns by itself.
    So neither draws nor probabilities depend on W, and what some ranks saved goes on exactly on any number of ranks up
    to V. Where W does not divide V, some ranks hold one stratum more than others, and K/V samples more of every batch.

    Every batch is measured, even where choosing does not pay. Else what a stratum hears would depend on the others.

    Args:
        strata: What chooses within each stratum, in the order of their numbers: r, r + W, r + 2W and so on below V.
        agree: Takes one number for each stratum held here, and returns those of all V, in order. None: these are all.
            It is asked before every draw where batches differ in size, so that all strata draw equally many.

    Attributes:
        own_samples: How many samples these strata have.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> held = [Stratum(UniformSelection(5, 2), 20, number=s, num_strata=4) for s in (1, 3)]
        >>> strata = Strata(held)  # rank 1 of 2
        >>> sorted(set((strata.draw().indices % 4).tolist()))
        [1, 3]
    """

    def __init__(self, strata: Sequence[Stratum], *, agree: Callable[[list[float]], list[float]] | None = None) -> None:
        # Generators are those of the strata, so the base class has nothing to set up.
        self.strata = _checked(strata)
        first = self.strata[0]
        self.num_samples, self.num_strata = first.num_samples, first.num_strata
        self.own_samples = sum(stratum.own_samples for stratum in self.strata)
        self._first, self._stride = first.number, _stride([stratum.number for stratum in self.strata], self.num_strata)
        self.batch_size = first.batch_size * len(self.strata)
        self.min_batch_size = first.min_batch_size * len(self.strata)
        self.learns, self.repeats, self.generator = first.learns, first.repeats, first.generator
        self.per_sample = first.selection.per_sample
        self._agree = None if agree is None else _checks.function("agree", agree)

    @property
    def draws_per_epoch(self) -> int:
        """How many draws make an epoch: floor(n/K)."""
        return self.strata[0].draws_per_epoch

    @property
    def origin(self) -> int:
        """What names the draws."""
        return self.strata[0].origin

    @property
    def _origin(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.origin

    def draw(self) -> Draw:
        """Choose the part of the next batch that is in these strata, one stratum after the other."""
        if self.min_batch_size < self.batch_size:
            self._plan_size()
        parts = [stratum.draw() for stratum in self.strata]
        if len(parts) == 1:
            return parts[0]
        indices, probs, loss_weights = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "probs", "loss_weights")
        )
        return Draw(indices, probs, loss_weights, self.origin).frozen()

    def _plan_size(self) -> None:
        """Let all strata draw equally many: what they need on average, which is right where they are alike."""
        needed = [stratum.selection.needed_size for stratum in self.strata]
        of_all = needed if self._agree is None else self._agree(needed)
        for stratum in self.strata:
            stratum.selection.plan_size(sum(of_all) / len(of_all))

    def update(self, draw: Draw, scores: Any) -> None:
        """Learn from the scores of the samples in these strata; nothing is changed if a stratum refuses them."""
        values = self.check(draw, scores)
        for stratum, part, rows in self._split(draw):
            stratum.update(part, values[rows])

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        values = super().check(draw, scores)
        for stratum, part, rows in self._split(draw):
            stratum.check(part, values[rows])
        return values

    def _split(self, draw: Draw) -> list[tuple[Stratum, Draw, np.ndarray]]:
        """Return every stratum with its part of the draw, and where that is in it."""
        numbers, parts = draw.indices % self.num_strata, []
        for stratum in self.strata:
            rows = np.flatnonzero(numbers == stratum.number)
            arrays = (draw.indices[rows], draw.probs[rows], draw.loss_weights[rows])
            parts.append((stratum, Draw(*arrays, stratum.origin), rows))
        return parts

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in this rank's next part; it sums to K/W. O(n)."""
        probs = np.zeros(self.num_samples)
        for stratum in self.strata:
            probs[stratum.number :: self.num_strata] = stratum.selection.inclusion_probs()
        return probs

    def places_of(self, indices: np.ndarray) -> np.ndarray:
        """Return where samples of these strata stand among their own samples, counted from 0 in ascending order."""
        return indices // self.num_strata * len(self.strata) + indices % self.num_strata // self._stride

    def samples_at(self, places: np.ndarray) -> np.ndarray:
        """Return the samples that stand at these places; see `places_of`."""
        rounds, rest = np.divmod(places, len(self.strata))
        return rounds * self.num_strata + rest * self._stride + self._first

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors and plain values."""
        return {**self.settings(), "strata": [stratum.state_dict() for stratum in self.strata]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which the same strata saved.

        Raises:
            ValueError: If other strata saved it, or it does not fit. Nothing is changed then.
        """
        if not isinstance(state, dict) or not isinstance(state.get("strata"), list):
            raise ValueError("`state` must be that of Strata, with the key strata.")
        saved = {**state, "held": len(state["strata"])}
        for name, value in {**self.settings(), "held": len(self.strata)}.items():
            if saved.get(name) != value:
                raise ValueError(f"`state` must be saved with {name}={value}, got {name}={saved.get(name)!r}.")
        before = [stratum.state_dict() for stratum in self.strata]
        try:
            for stratum, own in zip(self.strata, state["strata"], strict=True):
                stratum.load_state_dict(own)
        except BaseException:
            for stratum, own in zip(self.strata, before, strict=True):
                stratum.load_state_dict(own)
            raise

    def settings(self) -> dict[str, Any]:
        return {"num_samples": self.num_samples, "num_strata": self.num_strata}

    def __repr__(self) -> str:
        place = f"num_strata={self.num_strata}, first={self._first}"
        return f"Strata({len(self.strata)} of {self.strata[0].selection!r}, {place})"


def _checked(strata: Any) -> tuple[Stratum, ...]:
    """Return the strata, or raise unless one rank may hold them: W apart in one dataset, and alike."""
    held = _checks.sequence("strata", strata, "be a sequence of Stratum objects")
    if not held or not all(isinstance(stratum, Stratum) for stratum in held):
        kinds = ", ".join(type(stratum).__name__ for stratum in held) or "none"
        raise TypeError(f"`strata` must be a sequence of Stratum objects, got {kinds}.")
    for name in ("num_samples", "num_strata", "batch_size", "min_batch_size"):
        values = sorted({getattr(stratum, name) for stratum in held})
        if len(values) > 1:
            raise ValueError(f"`strata` must have one {name}, got {name}={values[0]} and {name}={values[1]}.")
    count, numbers = held[0].num_strata, [stratum.number for stratum in held]
    stride = _stride(numbers, count)
    if stride <= numbers[0] or numbers != list(range(numbers[0], count, stride)):
        rule = f"be r, r + W, r + 2W and so on of {count}, with r below W"
        raise ValueError(f"`strata` must {rule}, got {', '.join(map(str, numbers))}.")
    return held


def _stride(numbers: list[int], num_strata: int) -> int:
    """Return how far the numbers of strata are apart: W; for a single one, V leads to the same places."""
    return numbers[1] - numbers[0] if len(numbers) > 1 else num_strata
