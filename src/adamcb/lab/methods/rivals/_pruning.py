"""InfoBatch: epochs from which samples that are learned well are left out at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import Draw, Selection


class InfoBatch(Selection):
    """InfoBatch (Qin et al. 2024, "InfoBatch: lossless training speed up by unbiased dynamic data pruning").

    At the start of an epoch, of the samples whose last loss is below the mean of all last losses a share r is left out
    at random; the others of them weigh 1/(1 − r) in this epoch, and all the rest 1. A loss is remembered whenever its
    sample is in a batch; before that it counts as 3, the authors' number, so that nothing is left out of the first
    epoch. Over an epoch the gradients add up to those of all data in expectation; a batch's loss is the mean of its
    weighted losses, as in the authors' code, so with S samples kept a step is n/S times the unbiased one.

    Near the end there are whole epochs again: from δ of the training on. The authors count epochs. Here every method
    gets the same number of steps, of which pruned epochs need fewer, so δ is a share of the steps.

    Args:
        num_samples: n.
        batch_size: K.
        total_steps: How many batches will be drawn.
        prune_ratio: r.
        delta: δ.
        exploration: Not used.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        total_steps: int,
        prune_ratio: float = 0.5,
        delta: float = 0.875,
        exploration: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        self.total_steps = _checks.integer("total_steps", total_steps, low=1)
        self.prune_ratio = _checks.real("prune_ratio", prune_ratio, low=0.0, high=1.0, high_open=True)
        self.delta = _checks.real("delta", delta, low=0.0, high=1.0)
        self._scores = np.full(self.num_samples, 3.0)
        self._steps = 0
        self._start_epoch()

    def _start_epoch(self) -> None:
        well_learned = self._scores < self._scores.mean()
        if self._steps >= self.delta * self.total_steps:
            well_learned[:] = False
        easy, hard = np.flatnonzero(well_learned), np.flatnonzero(~well_learned)
        kept = easy[self._shuffled(len(easy))[: int((1.0 - self.prune_ratio) * len(easy))]]
        if len(kept) + len(hard) < self.batch_size:  # a dataset of a few batches: too few are left for one
            kept, hard, well_learned = easy[:0], np.arange(self.num_samples), np.zeros_like(well_learned)
        chosen = np.concatenate([hard, kept])
        self._order = chosen[self._shuffled(len(chosen))]
        self._is_rescaled, self._position = well_learned[self._order], 0

    def _shuffled(self, count: int) -> np.ndarray:
        return torch.randperm(count, generator=self.generator).numpy()

    def draw(self) -> Draw:
        """Return the next K samples of the epoch; what is left of it at its end is dropped."""
        if self._position + self.batch_size > len(self._order):
            self._start_epoch()
        part = slice(self._position, self._position + self.batch_size)
        self._position += self.batch_size
        self._steps += 1
        kept_share = np.where(self._is_rescaled[part], 1.0 - self.prune_ratio, 1.0)
        probs = kept_share * self.batch_size / len(self._order)
        return self.make_draw(self._order[part], probs, 1.0 / (kept_share * self.batch_size))

    def update(self, draw: Draw, scores: Any) -> None:
        """Remember the losses of the samples of `draw`: they are its scores."""
        self._scores[draw.indices] = self.check(draw, scores)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the same for all that this epoch kept, 0 for the others; it sums to K."""
        probs = np.zeros(self.num_samples)
        probs[self._order] = self.batch_size / len(self._order)
        return probs

    def _settings(self) -> dict[str, Any]:
        own = {"total_steps": self.total_steps, "prune_ratio": self.prune_ratio, "delta": self.delta}
        return {**super()._settings(), **own}

    def _learned(self) -> dict[str, Any]:
        arrays = {"scores": self._scores, "order": self._order, "is_rescaled": self._is_rescaled}
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {**tensors, "position": self._position, "steps": self._steps}

    def _restore(self, state: dict[str, Any]) -> None:
        self._scores, self._order, self._is_rescaled = (
            state[name].numpy().copy() for name in ("scores", "order", "is_rescaled")
        )
        self._position, self._steps = state["position"], state["steps"]
