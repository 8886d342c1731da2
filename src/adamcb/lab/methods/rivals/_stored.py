"""Rivals that remember one number per sample and draw with replacement in proportion to it.

The draws are AdamBS's, so that on the clock these rivals pay no more for a draw than we do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import Draw, ReplacementSelection, ShuffledEpochs


class LastSeen(ReplacementSelection):
    """Last-seen sampling: weights are what each sample's gradient norm, or loss, was when it was last in a batch.

    The norm is the variance-minimizing choice if nothing moved since (Alain et al. 2015, "Variance reduction in SGD by
    distributed importance sampling", with stale norms); the loss is the usual cheap stand-in (Loshchilov and Hutter
    2015, "Online batch selection", without their ranks). Both are mixed with uniform sampling and weighted to stay
    unbiased. There is no published γ: it is that of the other methods. The first epoch is a shuffled one, in which
    every sample is seen. The n mod K samples that it drops count as average ones.

    Args:
        num_samples: n.
        batch_size: K.
        exploration: γ, the share of uniform sampling.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        exploration: float = 0.4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, exploration=exploration, generator=generator)
        self._scores = np.full(self.num_samples, np.nan)
        self._epochs, self._drawn = ShuffledEpochs(self.num_samples, self.generator), 0

    @property
    def _first_epoch(self) -> bool:
        return self._drawn <= self.draws_per_epoch

    def draw(self) -> Draw:
        """Choose K samples: the next of the first epoch, and with replacement after it."""
        self._drawn += 1
        if self._first_epoch:
            probs, weights = self.batch_size / self.num_samples, 1.0 / self.batch_size
            return self.make_draw(self._epochs.take(self.batch_size), probs, weights)
        if self._drawn == self.draws_per_epoch + 1:
            seen = np.isfinite(self._scores)
            self._scores[~seen] = self._scores[seen].mean() if seen.any() else 1.0
            self.weights = self._scores
        return super().draw()

    def update(self, draw: Draw, scores: Any) -> None:
        """Remember the scores of the samples of `draw`."""
        values = self.check(draw, scores)
        self._scores[draw.indices] = values
        if not self._first_epoch:
            self.set_weights(draw.indices, values)

    def learned(self) -> dict[str, Any]:
        own = {"scores": torch.from_numpy(self._scores.copy()), "epochs": self._epochs.state_dict()}
        return {**super().learned(), **own, "drawn": self._drawn}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        self._epochs.check_state(state["epochs"], "state['epochs']")
        _checks.integer("state['drawn']", state["drawn"], low=0)

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._scores, self._drawn = state["scores"].numpy().copy(), state["drawn"]
        self._epochs.load_state_dict(state["epochs"])


class VarianceReducerBandit(ReplacementSelection):
    """VRB (Borsos, Krause and Levy 2018, "Online variance reduction for stochastic optimization", Algorithm 1).

    pᵢ = (1 − θ) √(wᵢ + γ)/Σⱼ√(wⱼ + γ) + θ/n, and every draw of sample i adds ‖gᵢ‖²/pᵢ to wᵢ, which estimates the sum of
    its squared norms over all rounds without bias. Nothing is forgotten: the aim is the best fixed distribution. As in
    the authors' code a batch is K draws with replacement, each of which adds its own term.

    θ = (n/T)^(1/3) and γ = L·n/θ are those of their theorem, T being all draws of the run. It takes L, a bound on
    ‖g‖², for known. Here L is the mean of ‖g‖² over the first batch, which is kind to it: with the largest the
    probabilities would stay near uniform.

    Args:
        num_samples: n.
        batch_size: K.
        total_steps: How many batches will be drawn: T = K·total_steps.
        generator: Where all random numbers come from.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        total_steps: int,
        generator: torch.Generator | None = None,
    ) -> None:
        rounds = batch_size * _checks.integer("total_steps", total_steps, low=1)
        theta = min(1.0, (num_samples / rounds) ** (1.0 / 3.0))
        super().__init__(num_samples, batch_size, exploration=theta, generator=generator)
        self._sums = np.zeros(self.num_samples)
        self._regularizer = 0.0  # γ; 0 until there is something to scale it by

    def update(self, draw: Draw, scores: Any) -> None:
        """Add ‖g‖²/p of every draw to its sample's sum."""
        squares = self.check(draw, scores) ** 2
        # A draw's probs are K p.
        np.add.at(self._sums, draw.indices, squares * self.batch_size / draw.probs)
        if self._regularizer == 0.0:
            self._regularizer = float(squares.mean()) * self.num_samples / self.exploration
            self.weights = np.sqrt(self._sums + self._regularizer)
        else:
            self.set_weights(draw.indices, np.sqrt(self._sums[draw.indices] + self._regularizer))

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "sums": torch.from_numpy(self._sums.copy()), "regularizer": self._regularizer}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._sums, self._regularizer = state["sums"].numpy().copy(), state["regularizer"]
