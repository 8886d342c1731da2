"""A weighted sampler without replacement whose probabilities are exactly those of its weights."""

from __future__ import annotations

from typing import Any

import torch

from adamcb import _checks
from adamcb.selection._depround import draw_ordered
from adamcb.selection._draw import Draw, empty_draw
from adamcb.selection._tree_selection import DistinctSelection


class WeightedSelection(DistinctSelection):
    """K distinct samples a draw, with inclusion probabilities exactly proportional to weights that you set.

    pᵢ = min(1, c·wᵢ), with the c that makes Σp = K: a sample whose probability would exceed 1 is in every batch, and
    the others share the rest in proportion. A sample of weight 0 is never drawn. Every draw has these probabilities,
    whatever was drawn before. Nothing is learned; `weights` may be read and assigned at any time, and count from the
    next draw on.

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
        draw = empty_draw(self.batch_size, self._origin)
        arrays = (draw.indices, draw.probs, draw.loss_weights)
        draw_ordered(self._tree, self._order, self.batch_size, self.min_prob, self._uniforms.take(), *arrays)
        return draw.frozen()

    @property
    def _min_positive(self) -> int:
        return self.batch_size
