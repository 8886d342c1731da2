"""Rivals that look before they choose: a forward pass over candidates, of which some become the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.lab.methods.rivals._scoring import Looked
from adamcb.selection import Draw, UniformSelection


class LookingSelection(UniformSelection):
    """Takes its candidates from shuffled epochs. Before the forward pass, all samples are as likely: K/n.

    Args:
        num_samples: n.
        batch_size: K.
        scorer: Returns the `Looked` of samples, by the model as it is now.
        generator: Where all random numbers come from.
    """

    learns = True
    repeats = True  # those looked at may come from two epochs

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        scorer: Callable[[np.ndarray], Looked],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        self.scorer = scorer

    def _uniform(self, indices: np.ndarray) -> Draw:
        return self.make_draw(indices, self.batch_size / self.num_samples, 1.0 / self.batch_size)


class SelectiveBackprop(LookingSelection):
    """Selective-Backprop (Jiang et al. 2019, "Accelerating deep learning by focusing on the biggest losers").

    Every sample gets a forward pass, and is taken for the backward pass with probability CDF(loss)^β, CDF being its
    rank among the last 1024 losses, itself among them, divided by their number; equal losses share the mean of their
    ranks. Taken samples queue up until there are K. They all weigh the same: hard samples count more, on purpose, so
    the gradient is biased. As in the authors' code β is 3, which takes a quarter of the samples, and the first epoch
    takes all. (Theirs makes a forward pass for it in that epoch too, which is spared here.)

    Args:
        num_samples: n.
        batch_size: K.
        scorer: Returns the `Looked` of samples, by the model as it is now.
        beta: β.
        history: How many losses the CDF is made of.
        generator: Where all random numbers come from.
    """

    learns = False  # from batches; it learns from its own forward passes

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        scorer: Callable[[np.ndarray], Looked],
        beta: float = 3.0,
        history: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, scorer, generator)
        self.beta = _checks.real("beta", beta, low=0.0)
        self.history = _checks.integer("history", history, low=1)
        self._draws = 0
        self._queue, self._losses = np.empty(0, dtype=np.int64), np.empty(0)

    def draw(self) -> Draw:
        """Look at candidates until K of them are taken."""
        self._draws += 1
        if self._draws <= self.num_samples // self.batch_size:
            return self._uniform(self.epochs.take(self.batch_size))
        while len(self._queue) < self.batch_size:
            candidates = self.epochs.take(self.batch_size)
            taken = self._take(self.scorer(candidates).losses)
            self._queue = np.concatenate([self._queue, candidates[taken]])
        batch, self._queue = self._queue[: self.batch_size], self._queue[self.batch_size :]
        return self._uniform(batch)

    def _take(self, losses: np.ndarray) -> np.ndarray:
        """Return which of the candidates with these losses are taken, bool[m]."""
        uniforms = torch.rand(len(losses), dtype=torch.float64, generator=self.generator).numpy()
        return uniforms < self.note_losses(losses)

    def note_losses(self, losses: np.ndarray) -> np.ndarray:
        """Add losses to the history, and return with what probability each of their samples is taken."""
        self._losses = np.concatenate([self._losses, losses])[-self.history :]
        ascending = np.sort(self._losses)
        first, last = (np.searchsorted(ascending, losses, side=side) for side in ("left", "right"))
        ranks = (first + 1 + last) / 2  # the mean of those of equal losses, which are first + 1 to last
        return (ranks / len(ascending)) ** self.beta

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "beta": self.beta, "history": self.history}

    def learned(self) -> dict[str, Any]:
        queue, losses = torch.from_numpy(self._queue.copy()), torch.from_numpy(self._losses.copy())
        return {**super().learned(), "draws": self._draws, "queue": queue, "history": losses}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._draws = state["draws"]
        self._queue, self._losses = state["queue"].numpy().copy(), state["history"].numpy().copy()


class Presampling(LookingSelection):
    """Presampling (Katharopoulos and Fleuret 2018, "Not all samples are created equal", Algorithm 1).

    While τ ≤ τ_th: reshuffled epochs. Above: B candidates get a forward pass, which gives gᵢ in proportion to the norm
    of the gradient at the logits; K of them are drawn with replacement by g and weigh 1/(B gᵢ), which is unbiased.
    τ = √(B Σg²), smoothed, says how much larger a uniform batch would have to be for the same variance. It is estimated
    from all candidates, or from the batch itself while batches are uniform, at no cost.

    The defaults are those of the authors' library: B = 3K, τ_th = (B + 3K)/(3K), where they expect the forward pass to
    pay if a backward costs two of it, and momentum 0.9. (Some of their experiments have B = 5K and τ_th = 1.5.)

    Args:
        num_samples: n.
        batch_size: K.
        scorer: Returns the `Looked` of samples, by the model as it is now.
        presample: B/K.
        threshold: τ_th; None: (B + 3K)/(3K).
        momentum: Of the moving average of τ.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        scorer: Callable[[np.ndarray], Looked],
        presample: float = 3.0,
        threshold: float | None = None,
        momentum: float = 0.9,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, scorer, generator)
        self.presample = _checks.real("presample", presample, low=1.0)
        self.num_candidates = min(self.num_samples, int(self.presample * self.batch_size))
        default = (self.num_candidates + 3 * self.batch_size) / (3 * self.batch_size)
        self.threshold = default if threshold is None else _checks.real("threshold", threshold, low=0.0)
        self.momentum = _checks.real("momentum", momentum, low=0.0, high=1.0)
        self.tau = 0.0

    def draw(self) -> Draw:
        """Return the next batch of the epoch, or one that is chosen from candidates."""
        if self.tau <= self.threshold:
            return self._uniform(self.epochs.take(self.batch_size))
        candidates = self.epochs.take(self.num_candidates)
        probs = _normalized(self.scorer(candidates).bounds)
        self._note(probs)
        targets = torch.rand(self.batch_size, dtype=torch.float64, generator=self.generator).numpy()
        sums = np.cumsum(probs)
        # Rounding must not lead past the last candidate that can be drawn.
        picked = np.minimum(np.searchsorted(sums, targets * sums[-1], side="right"), np.flatnonzero(probs)[-1])
        loss_weights = 1.0 / (self.batch_size * self.num_candidates * probs[picked])
        return self.make_draw(candidates[picked], 1.0 / (self.num_samples * loss_weights), loss_weights)

    def update(self, draw: Draw, scores: Any) -> None:
        """Estimate τ from a uniform batch's norms at the logits; a chosen one has told it already."""
        values = self.check(draw, scores)
        if np.all(draw.loss_weights == 1.0 / self.batch_size):
            self._note(_normalized(values))

    def _note(self, probs: np.ndarray) -> None:
        # The paper's (1 − ‖g − u‖²/‖g‖²)^(−1/2), u being uniform.
        new = math.sqrt(len(probs) * float(probs @ probs))
        self.tau = self.momentum * self.tau + (1.0 - self.momentum) * new

    def settings(self) -> dict[str, Any]:
        own = {"presample": self.presample, "threshold": self.threshold, "momentum": self.momentum}
        return {**super().settings(), **own}

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "tau": self.tau}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.tau = state["tau"]


def _normalized(scores: np.ndarray) -> np.ndarray:
    """Return scores that sum to 1; equal ones if all are 0."""
    total = scores.sum()
    return scores / total if total > 0.0 else np.full(len(scores), 1.0 / len(scores))
