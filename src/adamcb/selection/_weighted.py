"""A weighted sampler without replacement whose probabilities are exactly those of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._tree import assign
from adamcb.selection._tree_selection import DistinctSelection


class WeightedSelection(DistinctSelection):
    """K distinct samples a draw, with inclusion probabilities exactly proportional to weights that you set.

    pᵢ = min(1, c·wᵢ), with the c that makes Σp = K: a sample whose probability would exceed 1 is in every batch, and
    the others share the rest in proportion. A sample of weight 0 is never drawn. Every draw has these probabilities,
    whatever was drawn before. Nothing is learned; `weights` may be read and assigned at any time, `set_weights` changes
    some of them, and both count from the next draw on.

    Args:
        weights: n numbers ≥ 0, at least `batch_size` of them above 0.
        batch_size: K, at most n.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Example:
        >>> selection = WeightedSelection([1.0, 2.0, 3.0, 10.0], 2, generator=torch.Generator().manual_seed(0))
        >>> selection.inclusion_probs().round(3)
        array([0.167, 0.333, 0.5  , 1.   ])
        >>> selection.draw().indices
        array([0, 3])
    """

    learns = False

    def __init__(self, weights: Any, batch_size: int, *, generator: torch.Generator | None = None) -> None:
        values = _checks.vector("weights", weights)
        if not len(values):
            raise ValueError("`weights` must not be empty, got len(weights)=0.")
        super().__init__(len(values), batch_size, weights=values, generator=generator)

    def draw(self) -> Draw:
        """Choose K distinct samples. O(K log n); O(n) once an epoch, when the order is reshuffled."""
        self._reshuffle_if_done()
        self._drawn += 1
        return self._draw_by_weight(self.batch_size).frozen()

    def set_weights(self, indices: Any, weights: Any) -> None:
        """Change the weights of some samples; they count from the next draw on. O(k log n).

        Args:
            indices: k integers in [0, n). Of a sample that is named twice, the last weight counts.
            weights: k numbers ≥ 0, on the scale of what `weights` returns.

        Raises:
            ValueError, TypeError: If they are of another kind, or fewer than `batch_size` weights above 0 would be
                left. Nothing is changed then.
        """
        samples = _checks.indices("indices", indices, below=self.num_samples)
        values = _checks.vector("weights", weights, length=len(samples))
        if not len(samples):
            return
        positions = samples if self._position_of is None else self._position_of[samples]
        left = assign(self._tree, positions.astype(np.int64, copy=False), values, self._positive, self._min_positive)
        if left < self._min_positive:
            raise ValueError(f"`weights` must leave at least {self._min_positive} numbers above 0, got {left}.")
        self._positive = int(left)

    def _set_weights(self, weights: np.ndarray) -> None:
        super()._set_weights(weights)
        self._positive = int(np.count_nonzero(weights))

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._positive = int(np.count_nonzero(self._leaves[: self.num_samples]))

    @property
    def _min_positive(self) -> int:
        return self.batch_size
