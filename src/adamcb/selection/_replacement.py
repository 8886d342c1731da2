"""Selections that draw with replacement: by stored weights, and AdamBS's bandit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._bandit import Bandit
from adamcb.selection._draw import Draw, empty_draw
from adamcb.selection._feedback import ProofFeedback, Visit, checked_factors
from adamcb.selection._projection import project_to_floor
from adamcb.selection._tree import (
    SMALLEST,
    build_tree,
    jit,
    leaf_mass,
    multiply,
    range_exponent,
    refresh,
    scaled,
    search,
    total_weight,
)
from adamcb.selection._tree_selection import TreeSelection


class ReplacementSelection(TreeSelection):
    """Draws K samples independently, with replacement, from pᵢ = (1 − γ) wᵢ/Σⱼwⱼ + γ/n. O(K log n).

    The base of selections that store one number per sample. A subclass overrides `update` and says there what the
    weights are. All weights start at 1; if all of them are 0, the draw is uniform.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        exploration: γ in [0, 1]. Every sample has pᵢ ≥ γ/n (`min_prob`).
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Example:
        >>> class LastScore(ReplacementSelection):
        ...     def update(self, draw, scores):
        ...         self.set_weights(draw.indices, self.check(draw, scores))
        >>> selection = LastScore(4, 2, exploration=0.2, generator=torch.Generator().manual_seed(0))
        >>> selection.update(selection.draw(), [3.0, 0.0])
        >>> sorted(selection.weights.tolist())
        [0.0, 1.0, 1.0, 3.0]
    """

    repeats = True

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        exploration: float = 0.4,
        generator: torch.Generator | None = None,
    ) -> None:
        self.exploration = _checks.real("exploration", exploration, low=0.0, high=1.0)
        super().__init__(num_samples, batch_size, numbers=1, generator=generator)
        self.min_prob = self.exploration / self.num_samples
        self._tree = build_tree(np.ones(self.num_samples))
        self._exponent = 0  # the tree holds the weights times 2**_exponent

    def draw(self) -> Draw:
        """Choose K samples; one of them may be chosen several times. O(K log n)."""
        draw = empty_draw(self.batch_size, self._origin)
        arrays = (draw.indices, draw.probs, draw.loss_weights)
        draw_with_replacement(self._tree, self.num_samples, *self._slope_and_base(), self._uniforms.take(), *arrays)
        return draw.frozen()

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in the next batch; it sums to K. O(n)."""
        slope, base = self._slope_and_base()
        return self.batch_size * (slope * self._tree.leaves[: self.num_samples] + base)

    def _slope_and_base(self) -> tuple[float, float]:
        """Return a and b of pᵢ = a·wᵢ + b."""
        total = total_weight(self._tree)
        if total <= 0.0:
            return 0.0, 1.0 / self.num_samples
        return (1.0 - self.exploration) / total, self.min_prob

    def set_weights(self, indices: np.ndarray, weights: Any) -> None:
        """Replace the weights of the samples at `indices`; if one occurs repeatedly, its last value counts. O(k log n).

        Args:
            indices: int64[k].
            weights: k numbers ≥ 0, on the scale of the weights that were last assigned to all samples.
        """
        samples = _checks.indices("indices", indices, below=self.num_samples)
        values = _checks.vector("weights", weights, length=len(samples))
        self._tree.leaves[samples] = scaled(values, self._exponent)
        refresh(self._tree, np.unique(samples))

    def _assign(self, weights: np.ndarray) -> None:
        self._exponent = range_exponent(weights)
        self._set_weights(scaled(weights, self._exponent))

    @property
    def _min_positive(self) -> int:
        return 0

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "exploration": self.exploration}

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "exponent": self._exponent}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        _checks.integer("state['exponent']", state["exponent"])

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._exponent = state["exponent"]


class ReplacementBandit(Bandit, ReplacementSelection):
    """AdamBS's selection: K independent draws with replacement, from pᵢ that sum to 1.

    Δ log w = −(γ/n)·ℓ/(K p) for every occurrence of a sample, with ℓ = 1 − (p_min‖g‖/(L p))² and p_min = γ/n.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        exploration: γ in [0, 1]. Every sample has pᵢ ≥ γ/n (`min_prob`).
        form: "corrected" (Algorithms 4 and 5 of the AdamCB paper): pᵢ = (1 − γ) wᵢ/Σⱼwⱼ + γ/n. "original" (Liu, Wu and
            Mozafari 2020): p itself is multiplied and then projected in KL divergence onto {p ≥ p_min, Σp = 1}.
        max_norm: L, a bound on the norms; a norm above it is an error. None: the largest norm seen so far.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Example:
        >>> bandit = ReplacementBandit(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> bandit.draw().loss_weights
        array([0.25, 0.25, 0.25, 0.25])
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        exploration: float = 0.4,
        form: str = "corrected",
        max_norm: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._rule = ProofFeedback(max_norm)
        super().__init__(num_samples, batch_size, feedback=self._rule, exploration=exploration, generator=generator)
        self.form = _checks.one_of("form", form, ("corrected", "original"))

    @property
    def max_norm(self) -> float | None:
        """L, if it was given."""
        return self._rule.max_norm

    def _slope_and_base(self) -> tuple[float, float]:
        if self.form == "original":
            return 1.0 / total_weight(self._tree), 0.0
        return super()._slope_and_base()

    def update(self, draw: Draw, scores: Any) -> None:
        """Change the weights of the samples in `draw` by their scores. O(k log n).

        Args:
            draw: One of this selection's draws, the last or an earlier one.
            scores: k numbers ≥ 0 in the order of `draw.indices`: the norms of the unweighted per-sample gradients.

        Raises:
            ValueError: If `scores` has the wrong length, or holds NaN, infinite or negative numbers or one above
                `max_norm`; or if another selection made the draw. Nothing is changed then.
        """
        values = self.check(draw, scores)
        # A draw's probs are K p, so the smallest of them is K p_min; they have no upper limit.
        visit = Visit(values, draw.probs, draw.probs, self.batch_size * self.min_prob, math.inf)
        factors, state = self._rule.factors_at_rate(self.min_prob, visit, self._feedback_state)
        multiply(self._tree, draw.indices, checked_factors(factors, len(draw)), SMALLEST)
        self._feedback_state = state
        if self.form == "original":
            project_to_floor(self._tree, np.unique(draw.indices), self.min_prob)

    @property
    def _min_positive(self) -> int:
        return 1

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "form": self.form, "max_norm": self.max_norm}


@jit
def draw_with_replacement(tree, num_samples, slope, base, uniforms, indices, probs, loss_weights):
    """Draw K leaves independently in proportion to mass, which sums to 1, and write the three arrays of a `Draw`."""
    search(tree, slope, base, uniforms, indices, np.empty(len(uniforms)))
    for i in range(len(indices)):
        probs[i] = len(indices) * leaf_mass(tree, slope, base, indices[i])
        loss_weights[i] = 1.0 / (num_samples * probs[i])
