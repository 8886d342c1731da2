"""Rivals that remember one number a sample and draw with replacement in proportion to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import Draw
from adamcb.selection._base import BaseSelection
from adamcb.selection._depround import draw_with_replacement
from adamcb.selection._draw import empty_draw
from adamcb.selection._random import Uniforms, new_seed, permutation
from adamcb.selection._tree import SMALLEST, build_tree, in_range, refresh, total_weight


class StoredScores(BaseSelection):
    """Draws K samples independently from pᵢ = (1 − γ) sᵢ/Σⱼsⱼ + γ/n, in O(K log n). A subclass says what s is.

    The draws are AdamBS's, so that on the clock these rivals pay no more for a draw than we do.
    """

    def __init__(
        self, num_samples: int, batch_size: int, exploration: float, generator: torch.Generator | None
    ) -> None:
        super().__init__(num_samples, batch_size, generator)
        self.exploration = _checks.real("exploration", exploration, low=0.0, high=1.0)
        self._uniforms = Uniforms(self.batch_size, self.generator)
        self._tree = build_tree(np.ones(self.num_samples))

    def draw(self) -> Draw:
        """Choose K samples, one of them possibly several times."""
        draw = empty_draw(self.batch_size, self._origin)
        arrays = (draw.indices, draw.probs, draw.loss_weights)
        draw_with_replacement(self._tree, self.num_samples, *self._slope_and_base(), self._uniforms.take(), *arrays)
        return draw.frozen()

    def _slope_and_base(self) -> tuple[float, float]:
        total = total_weight(self._tree)
        if total <= 0.0:  # all gradients have vanished: there is nothing to prefer
            return 0.0, 1.0 / self.num_samples
        return (1.0 - self.exploration) / total, self.exploration / self.num_samples

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in the next batch; it sums to K. O(n)."""
        slope, base = self._slope_and_base()
        return self.batch_size * (slope * self._tree.leaves[: self.num_samples] + base)

    def _assign(self, indices: np.ndarray, scores: np.ndarray) -> None:
        """Set s at `indices`; of repeats the last counts."""
        self._tree.leaves[indices] = np.where(scores > 0.0, np.maximum(scores, SMALLEST), 0.0)
        refresh(self._tree, np.unique(indices))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "exploration": self.exploration}

    def _learned(self) -> dict[str, Any]:
        return {"uniforms": torch.from_numpy(self._uniforms.rest.copy())}

    def _restore(self, state: dict[str, Any]) -> None:
        self._uniforms.rest = state["uniforms"].numpy().copy()


class LastSeen(StoredScores):
    """Last-seen sampling: s is what each sample's gradient norm, or loss, was when it was last in a batch.

    The norm is the variance-minimizing choice if nothing moved since (Alain et al. 2015, "Variance reduction in SGD by
    distributed importance sampling", with stale norms); the loss is the usual cheap stand-in (Loshchilov and Hutter
    2015, "Online batch selection", without their ranks). Both are mixed with uniform sampling and weighted to stay
    unbiased. There is no published γ: it is that of the other methods. The first epoch is a reshuffled one, in which
    every sample is seen; what it drops (n mod K) counts as an average sample.

    Args:
        num_samples: n.
        batch_size: K.
        exploration: γ, the share of uniform sampling.
        generator: Where all random numbers come from.
    """

    _learned_keys = ("uniforms", "scores", "order_seed", "drawn")

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        exploration: float = 0.4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, exploration, generator)
        self._scores = np.full(self.num_samples, np.nan)
        self._order_seed, self._drawn = new_seed(self.generator), 0
        self._order = permutation(self.num_samples, self._order_seed)

    @property
    def _first_epoch(self) -> bool:
        return self._drawn <= self.num_samples // self.batch_size

    def draw(self) -> Draw:
        """Choose K samples: the next of the first epoch, and with replacement after it."""
        self._drawn += 1
        if not self._first_epoch:
            if self._drawn == self.num_samples // self.batch_size + 1:
                self._build()
            return super().draw()
        draw = empty_draw(self.batch_size, self._origin)
        first = (self._drawn - 1) * self.batch_size
        draw.indices[:] = self._order[first : first + self.batch_size]
        draw.probs[:], draw.loss_weights[:] = self.batch_size / self.num_samples, 1.0 / self.batch_size
        return draw.frozen()

    def _build(self) -> None:
        seen = np.isfinite(self._scores)
        self._scores[~seen] = self._scores[seen].mean() if seen.any() else 1.0
        self._tree = build_tree(in_range(self._scores))

    def update(self, draw: Draw, norms: Any) -> None:
        """Remember the norms, or losses, of the samples of `draw`."""
        scores = _checks.vector("norms", self._check_feedback(draw, norms))
        self._scores[draw.indices] = scores
        if not self._first_epoch:
            self._assign(draw.indices, scores)

    def _learned(self) -> dict[str, Any]:
        scores = torch.from_numpy(self._scores.copy())
        return {**super()._learned(), "scores": scores, "order_seed": self._order_seed, "drawn": self._drawn}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._scores = state["scores"].numpy().copy()
        self._order_seed, self._drawn = state["order_seed"], state["drawn"]
        self._order = permutation(self.num_samples, self._order_seed)
        if not self._first_epoch:
            self._tree = build_tree(in_range(self._scores))


class VarianceReducerBandit(StoredScores):
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
        exploration: Not used; θ follows from T.
        generator: Where all random numbers come from.
    """

    _learned_keys = ("uniforms", "sums", "regularizer")

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        total_steps: int,
        exploration: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        rounds = batch_size * _checks.integer("total_steps", total_steps, low=1)
        super().__init__(num_samples, batch_size, min(1.0, (num_samples / rounds) ** (1.0 / 3.0)), generator)
        self._sums = np.zeros(self.num_samples)
        self._regularizer = 0.0  # γ; 0 until there is something to scale it by

    def update(self, draw: Draw, norms: Any) -> None:
        """Add ‖g‖²/p of every draw to its sample's sum."""
        squares = _checks.vector("norms", self._check_feedback(draw, norms)) ** 2
        # A draw's probs are K p.
        np.add.at(self._sums, draw.indices, squares * self.batch_size / draw.probs)
        if self._regularizer == 0.0:
            self._regularizer = float(squares.mean()) * self.num_samples / self.exploration
            self._rebuild()
        else:
            self._assign(draw.indices, np.sqrt(self._sums[draw.indices] + self._regularizer))

    def _rebuild(self) -> None:
        weights = np.sqrt(self._sums + self._regularizer)
        self._tree = build_tree(weights if weights.max() > 0.0 else np.ones(self.num_samples))

    def _learned(self) -> dict[str, Any]:
        return {**super()._learned(), "sums": torch.from_numpy(self._sums.copy()), "regularizer": self._regularizer}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._sums, self._regularizer = state["sums"].numpy().copy(), state["regularizer"]
        self._rebuild()
