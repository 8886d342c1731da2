"""InfoBatch: epochs from which samples that are learned well are left out at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.lab.methods.rivals._order import shuffled
from adamcb.selection import Draw, Selection


class InfoBatch(Selection):
    """InfoBatch (Qin et al. 2024, "InfoBatch: lossless training speed up by unbiased dynamic data pruning").

    At the start of an epoch, of the samples whose last loss is below the mean of all last losses a share r is left out
    at random; the others of them weigh 1/(1 − r) in this epoch, and all the rest 1. A loss is remembered whenever its
    sample is in a batch; before that it counts as 3, the authors' number, so that nothing is left out of the first
    epoch. Over an epoch the gradients add up to those of all data in expectation; a batch's loss is the mean of its
    weighted losses, as in the authors' code, so with S samples kept a step is n/S times the unbiased one.

    Near the end there are whole epochs again: from δ of the training on. Where every method gets the same number of
    steps (`total_steps`), of which pruned epochs need fewer, δ is a share of the steps. The authors count epochs, as
    `total_epochs` does: training is shorter then, and `progress` says how much of it is done.

    Args:
        num_samples: n.
        batch_size: K.
        total_steps: How many batches will be drawn.
        total_epochs: Instead of `total_steps`, how many epochs, pruned or whole, will be drawn.
        prune_ratio: r.
        delta: δ.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        total_steps: int | None = None,
        total_epochs: float | None = None,
        prune_ratio: float = 0.5,
        delta: float = 0.875,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        if (total_steps is None) == (total_epochs is None):
            got = f"total_steps={total_steps} and total_epochs={total_epochs}"
            raise ValueError(f"`total_steps` or `total_epochs` must be given, and not both, got {got}.")
        self.total_steps = None if total_steps is None else _checks.integer("total_steps", total_steps, low=1)
        self.total_epochs = total_epochs
        if total_epochs is not None:
            _checks.real("total_epochs", total_epochs, low=0.0, low_open=True)
        self.prune_ratio = _checks.real("prune_ratio", prune_ratio, low=0.0, high=1.0, high_open=True)
        self.delta = _checks.real("delta", delta, low=0.0, high=1.0)
        self._scores = np.full(self.num_samples, 3.0)
        self._steps = self._epochs = 0
        self._position, self._order = 0, np.arange(self.num_samples)
        self._start_epoch()

    @property
    def progress(self) -> float:
        """How much of the training is drawn, from 0 to 1."""
        if self.total_steps is not None:
            return self._steps / self.total_steps
        assert self.total_epochs is not None
        batches = len(self._order) // self.batch_size
        return (self._epochs + self._position / (batches * self.batch_size)) / self.total_epochs

    def _start_epoch(self) -> None:
        well_learned = self._scores < self._scores.mean()
        if self.progress >= self.delta:
            well_learned[:] = False
        easy, hard = np.flatnonzero(well_learned), np.flatnonzero(~well_learned)
        kept = easy[shuffled(len(easy), self.generator)[: int((1.0 - self.prune_ratio) * len(easy))]]
        if len(kept) + len(hard) < self.batch_size:  # a dataset of a few batches: too few are left for one
            kept, hard, well_learned = easy[:0], np.arange(self.num_samples), np.zeros_like(well_learned)
        chosen = np.concatenate([hard, kept])
        self._order = chosen[shuffled(len(chosen), self.generator)]
        self._is_rescaled, self._position = well_learned[self._order], 0

    def draw(self) -> Draw:
        """Return the next K samples of the epoch; what is left of it at its end is dropped."""
        if self._position + self.batch_size > len(self._order):
            self._epochs, self._position = self._epochs + 1, 0
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

    def settings(self) -> dict[str, Any]:
        own = {
            "total_steps": self.total_steps,
            "total_epochs": self.total_epochs,
            "prune_ratio": self.prune_ratio,
            "delta": self.delta,
        }
        return {**super().settings(), **own}

    def learned(self) -> dict[str, Any]:
        arrays = {"scores": self._scores, "order": self._order, "is_rescaled": self._is_rescaled}
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {**tensors, "position": self._position, "steps": self._steps, "epochs": self._epochs}

    def restore(self, state: dict[str, Any]) -> None:
        self._scores, self._order, self._is_rescaled = (
            state[name].numpy().copy() for name in ("scores", "order", "is_rescaled")
        )
        self._position, self._steps, self._epochs = state["position"], state["steps"], state["epochs"]
