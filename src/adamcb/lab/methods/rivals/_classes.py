"""What people do about rare classes: balanced sampling, undersampling, a weighted loss, and focal loss.

All of them change what is minimized, on purpose: rare classes count more than they occur. Ranking may gain from that;
probabilities do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamcb.lab.methods.rivals._order import shuffled
from adamcb.selection import Draw, Selection, UniformSelection


def focal(losses: Tensor, gamma: float = 2.0) -> Tensor:
    """Return the focal loss (Lin et al. 2017, γ = 2) of samples whose cross-entropy is −log p: (1 − p)^γ (−log p)."""
    return (-torch.expm1(-losses)).pow(gamma) * losses


class _OfClasses(Selection):
    """Knows the class of every sample.

    Args:
        num_samples: n.
        batch_size: K.
        labels: int64[n], the class of every sample.
        generator: Where all random numbers come from.
    """

    learns = False

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        labels: np.ndarray,
        generator: torch.Generator | None = None,
    ) -> None:
        kinds, self.classes, self.counts = np.unique(labels, return_inverse=True, return_counts=True)
        self.num_classes = len(kinds)
        super().__init__(num_samples, batch_size, generator=generator)


class ClassBalanced(_OfClasses):
    """`WeightedRandomSampler` with weights 1/count: all classes are as likely, with replacement; losses count 1/K."""

    repeats = True

    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self._by_class = np.argsort(self.classes, kind="stable")
        self._starts = np.cumsum(self.counts) - self.counts

    def draw(self) -> Draw:
        """Draw a class, and then one of its samples, K times."""
        kinds = torch.randint(self.num_classes, (self.batch_size,), generator=self.generator).numpy()
        places = torch.rand(self.batch_size, dtype=torch.float64, generator=self.generator).numpy()
        indices = self._by_class[self._starts[kinds] + (places * self.counts[kinds]).astype(np.int64)]
        probs = self.batch_size / (self.num_classes * self.counts[self.classes[indices]])
        return self.make_draw(indices, probs, 1.0 / self.batch_size)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often each sample is expected in a batch."""
        return self.batch_size / (self.num_classes * self.counts[self.classes])


class WeightedLoss(_OfClasses, UniformSelection):
    """Shuffled epochs with scikit-learn's "balanced" class weights in the loss: n/(classes · count)."""

    def draw(self) -> Draw:
        """Return the next K samples of the epoch, with the weights of their classes."""
        indices = self.epochs.take(self.batch_size)
        weights = self.num_samples / (self.num_classes * self.counts[self.classes[indices]])
        return self.make_draw(indices, self.batch_size / self.num_samples, weights / self.batch_size)


class Undersampling(_OfClasses):
    """Epochs over all samples of the rarest class and as many of every other class, which each epoch draws anew."""

    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.min_batch_size = min(self.batch_size, self.num_classes * int(self.counts.min()))
        self._order, self._position = np.arange(0), 0

    def draw(self) -> Draw:
        """Return the next samples of the epoch, K or all of it; what is left at its end is dropped."""
        size = self.min_batch_size
        if self._position + size > len(self._order):
            self._start_epoch()
        indices = self._order[self._position : self._position + size]
        self._position += size
        return self.make_draw(indices, size / (self.num_classes * self.counts[self.classes[indices]]), 1.0 / size)

    def _start_epoch(self) -> None:
        mixed = shuffled(self.num_samples, self.generator)
        by_class = mixed[np.argsort(self.classes[mixed], kind="stable")]
        ranks = np.arange(self.num_samples) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        kept = by_class[ranks < self.counts.min()]
        self._order, self._position = kept[shuffled(len(kept), self.generator)], 0

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often each sample is expected in a batch."""
        return self.min_batch_size / (self.num_classes * self.counts[self.classes])

    def learned(self) -> dict[str, Any]:
        return {"order": torch.from_numpy(self._order.copy()), "position": self._position}

    def restore(self, state: dict[str, Any]) -> None:
        self._order, self._position = state["order"].numpy().copy(), state["position"]
