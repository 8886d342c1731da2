"""Reshuffled epochs: the baseline that everybody uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb.selection._draw import Draw, uniform_draw
from adamcb.selection._random import ShuffledEpochs
from adamcb.selection._selection import Selection


class UniformSelection(Selection):
    """Reshuffled epochs: every sample once an epoch, in random order, cut into floor(n/K) batches of K.

    What is left at the end of an epoch (n mod K samples) is dropped, so every batch has K samples and pᵢ = K/n.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Example:
        >>> selection = UniformSelection(10, 4, generator=torch.Generator().manual_seed(0))
        >>> epoch = [*selection.draw().indices, *selection.draw().indices]
        >>> len(set(epoch))
        8
    """

    learns = False

    def __init__(self, num_samples: int, batch_size: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        self.epochs = ShuffledEpochs(self.num_samples, self.generator)

    def draw(self) -> Draw:
        """Return the next K samples of the epoch."""
        return uniform_draw(self.epochs.take(self.batch_size), self.num_samples, self._origin)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], K/n for every sample, whatever was drawn earlier in this epoch."""
        return np.full(self.num_samples, self.batch_size / self.num_samples)

    def learned(self) -> dict[str, Any]:
        return {"epochs": self.epochs.state_dict()}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        self.epochs.check_state(state["epochs"], "state['epochs']")

    def restore(self, state: dict[str, Any]) -> None:
        self.epochs.load_state_dict(state["epochs"])
