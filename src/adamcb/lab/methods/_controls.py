"""Controls: uniform batches that cost less, to tell what choosing brings from what fewer samples bring."""

from __future__ import annotations

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import Draw, UniformSelection


class SmallBatches(UniformSelection):
    """Shuffled epochs in batches of a part of K: as many steps as with batches of K, on fewer samples.

    Args:
        num_samples: n.
        batch_size: K; an epoch has floor(n/K) batches.
        share: How large a batch is, as a part of K.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        share: float = 0.25,
        generator: torch.Generator | None = None,
    ) -> None:
        size = max(1, round(_checks.real("share", share, low=0.0, high=1.0, low_open=True) * batch_size))
        super().__init__(num_samples, batch_size, generator=generator)
        self.min_batch_size = size

    def draw(self) -> Draw:
        """Return the next samples of the epoch."""
        return self.make_draw(self.epochs.take(self.min_batch_size), self.min_batch_size / self.num_samples)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the same for every sample."""
        return np.full(self.num_samples, self.min_batch_size / self.num_samples)


# What draws uniformly on purpose.
CONTROLS = (UniformSelection, SmallBatches)
