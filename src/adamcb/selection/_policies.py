"""The selections: AdamCB's combinatorial bandit, AdamBS's bandit with replacement, reshuffled epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._capping import probs_at
from adamcb.selection._depround import draw_ordered, draw_with_replacement
from adamcb.selection._draw import Draw, empty_draw
from adamcb.selection._feedback import BanditFeedback, ScaleFreeFeedback
from adamcb.selection._gate import Gate
from adamcb.selection._projection import project_to_floor
from adamcb.selection._random import Uniforms, inverse, new_seed, permutation
from adamcb.selection._selection import Selection
from adamcb.selection._tree import SMALLEST, build_tree, total_weight
from adamcb.selection._weighted import WeightedSelection

# Scale-free feedback: a weight adds at least this share of p_min to the probability. Lower, and a sample that was quiet
# for many epochs would take as many to be noticed again, while its probability is exploration's alone all the time.
_LIGHTEST = 1e-3


class CombinatorialBandit(WeightedSelection):
    """AdamCB's selection: K distinct samples a draw, each with exactly its inclusion probability (Algorithms 2, 3, 7).

    pᵢ = K((1 − γ) wᵢ/Σⱼwⱼ + γ/n), after the largest weights are capped so that no pᵢ exceeds 1; a capped sample has
    pᵢ = 1 and is in every batch. DepRound draws the batch in O(K log n), in a random order of the samples. Which ones
    can meet in a batch depends on the order, so it is redrawn every epoch of floor(n/K) draws.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        exploration: γ in [0, 1]. Every sample has pᵢ ≥ Kγ/n (`min_prob`); at 1 the draw is uniform. With 0 the bandit's
            rate Kγ/n is 0 too: "bandit" and "listing" then learn nothing.
        feedback: How norms change weights. "bandit": Δ log w = −(Kγ/n)·ℓ/p with ℓ = 1 − (p_min‖g‖/(L p))², the form of
            the proof of Lemma 2. "listing": −(Kγ/n)·ℓ, as Algorithm 3 is printed; it hardly learns. "scale-free":
            clip(rate·(s/G − 1), −1, 1) with s = (‖g‖/p)² and G its running mean.
        max_norm: L, a bound on the norms, for "bandit" and "listing"; a norm above it is an error. None: the largest
            norm seen so far (Algorithm 7).
        rate: η of "scale-free".
        min_gain: For "scale-free": batches come from reshuffled epochs, as `UniformSelection` draws them, until the
            learned probabilities would lower the second moment of the batch gradient by this share. From then on every
            epoch begins reshuffled, and ends with draws by the weights: as large a share of it as they lower the
            second moment by. 0: all draws are by the weights, from the first.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Example:
        >>> bandit = CombinatorialBandit(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> draw = bandit.draw()
        >>> len(set(draw.indices)), draw.probs
        (4, array([0.004, 0.004, 0.004, 0.004]))
        >>> bandit.update(draw, scores=[0.1, 2.0, 0.3, 0.1])
        >>> heaviest, lightest = bandit.weights[draw.indices[[1, 0]]]
        >>> bool(lightest < heaviest < 1.0)
        True
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        exploration: float = 0.4,
        feedback: str = "bandit",
        max_norm: float | None = None,
        rate: float = 0.3,
        min_gain: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, exploration, generator)
        self.feedback = _checks.one_of("feedback", feedback, ("bandit", "listing", "scale-free"))
        self.min_prob = self.batch_size * self.exploration / self.num_samples
        rate, gate = _checks.real("rate", rate, low=0.0, low_open=True), Gate(min_gain)
        if feedback == "scale-free":
            self._feedback = ScaleFreeFeedback(rate, max_norm, gate)
        else:
            # Both the rate Kγ/n and p_min = Kγ/n: the same number in two roles.
            self._feedback = BanditFeedback(self.min_prob, self.min_prob, max_norm, listing=feedback == "listing")
        self._uniforms = Uniforms(2 * self.batch_size, self.generator)
        self._start_epoch(new_seed(self.generator), np.ones(self.num_samples))

    @property
    def _draws_by_weight(self) -> bool:
        draws = self.num_samples // self.batch_size
        return self.batch_size < self.num_samples and self._feedback.pays((self._drawn + 1) / draws)

    def draw(self) -> Draw:
        """Choose K distinct samples. O(K log n); O(n) once an epoch, when the order is redrawn."""
        if self._drawn == self.num_samples // self.batch_size:
            self._start_epoch(new_seed(self.generator), self.weights)
        draw = empty_draw(self.batch_size, self._origin)
        if self._draws_by_weight:
            arrays = (draw.indices, draw.probs, draw.loss_weights)
            draw_ordered(self._tree, self._order, self.batch_size, self.min_prob, self._uniforms.take(), *arrays)
        else:
            _draw_from_epoch(np.asarray(self._order), self._drawn, draw)
        self._drawn += 1
        return draw.frozen()

    def _own_probs(self, draw: Draw, positions: np.ndarray) -> tuple[np.ndarray, float]:
        if self.feedback != "scale-free" or self.batch_size == self.num_samples:
            return super()._own_probs(draw, positions)
        probs, slope = self._probs_by_weight(positions)
        return probs, max(_LIGHTEST * self.min_prob / slope, SMALLEST) if slope > 0.0 else SMALLEST

    def _probs_by_weight(self, positions: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the inclusion probabilities by the weights, and how fast they rise with them."""
        sizes = (self.num_samples, self.batch_size, self.min_prob)
        slope = probs_at(self._tree, *sizes, positions, probs := np.empty(len(positions)))
        return probs, slope

    def _start_epoch(self, seed: int, weights: np.ndarray) -> None:
        self.__dict__.pop("_tree", None)  # so that the old tree and the new one are not in memory side by side
        self._order = self._position_of = None
        try:
            self._order = permutation(self.num_samples, seed)
            self._position_of = inverse(self._order)
            self._set_weights(weights)
        except BaseException:  # interrupted, or out of memory: keep what was learned, for the next draw to begin again
            self._order = self._position_of = None
            self._set_weights(weights)
            self._drawn = self.num_samples // self.batch_size
            raise
        self._order_seed, self._drawn = seed, 0

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the probability of every sample to be in the next batch; it sums to K. O(n).

        Between two epochs, when people look: to be in one more batch of the epoch that has ended.
        """
        if not self._draws_by_weight:
            return np.full(self.num_samples, self.batch_size / self.num_samples)
        everywhere = np.arange(self.num_samples) if self._position_of is None else self._position_of
        return self._probs_by_weight(everywhere)[0]

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "feedback": self.feedback}

    def _learned(self) -> dict[str, Any]:
        return {**super()._learned(), "order_seed": self._order_seed, "drawn": self._drawn}

    def _check_state(self, state: Any) -> None:
        super()._check_state(state)
        _check_place(self, state)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._start_epoch(state["order_seed"], self.weights)
        self._drawn = state["drawn"]


class ReplacementBandit(WeightedSelection):
    """AdamBS's selection: K independent draws with replacement, from pᵢ that sum to 1.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        exploration: γ in [0, 1]. Every sample has pᵢ ≥ γ/n (`min_prob`).
        form: "corrected" (Algorithms 4 and 5 of the AdamCB paper): pᵢ = (1 − γ) wᵢ/Σⱼwⱼ + γ/n. "original" (Liu, Wu and
            Mozafari 2020): p itself is multiplied and then projected in KL divergence onto {p ≥ p_min, Σp = 1}.
        max_norm: L, a bound on the norms; a norm above it is an error. None: the largest norm seen so far.
        bandit_lr: α_p, in Δ log w = −α_p·ℓ̂ with ℓ̂ = ℓ/(K p) for every occurrence. None: γ/n, as in Algorithm 5.
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
        bandit_lr: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, exploration, generator)
        self.form = _checks.one_of("form", form, ("corrected", "original"))
        self.min_prob = self.exploration / self.num_samples
        self.bandit_lr = self.min_prob if bandit_lr is None else _checks.real("bandit_lr", bandit_lr, low=0.0)
        # A draw's probs are K p, so the smallest of them is K p_min.
        floor = self.batch_size * self.min_prob
        self._feedback = BanditFeedback(self.bandit_lr, floor, max_norm, keep_capped=False)
        self._uniforms = Uniforms(self.batch_size, self.generator)
        self._tree = build_tree(np.ones(self.num_samples))

    def draw(self) -> Draw:
        """Choose K samples, one of them possibly several times. O(K log n)."""
        draw = empty_draw(self.batch_size, self._origin)
        arrays = (draw.indices, draw.probs, draw.loss_weights)
        draw_with_replacement(self._tree, self.num_samples, *self._slope_and_base(), self._uniforms.take(), *arrays)
        return draw.frozen()

    def _slope_and_base(self) -> tuple[float, float]:
        if self.form == "original":
            return 1.0 / total_weight(self._tree), 0.0
        return (1.0 - self.exploration) / total_weight(self._tree), self.min_prob

    def update(self, draw: Draw, scores: Any) -> None:  # noqa: D102
        super().update(draw, scores)
        if self.form == "original":
            project_to_floor(self._tree, np.unique(draw.indices), self.min_prob)

    update.__doc__ = WeightedSelection.update.__doc__

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in the next batch; it sums to K. O(n)."""
        slope, base = self._slope_and_base()
        return self.batch_size * (slope * self.weights + base)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "form": self.form, "bandit_lr": self.bandit_lr}


class UniformSelection(Selection):
    """Reshuffled epochs: every sample once an epoch, in random order, cut into floor(n/K) batches of K.

    What is left of an epoch (n mod K samples) is dropped, so every batch has K samples and pᵢ = K/n.

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
        self._start_epoch(new_seed(self.generator))

    def _start_epoch(self, seed: int) -> None:
        self._order_seed, self._drawn = seed, 0
        self._order = permutation(self.num_samples, seed)

    def draw(self) -> Draw:
        """Return the next K samples of the epoch."""
        if self._drawn == self.num_samples // self.batch_size:
            self._start_epoch(new_seed(self.generator))
        self._drawn += 1
        draw = empty_draw(self.batch_size, self._origin)
        _draw_from_epoch(self._order, self._drawn - 1, draw)
        return draw.frozen()

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], K/n for every sample, whatever was drawn before in this epoch."""
        return np.full(self.num_samples, self.batch_size / self.num_samples)

    def _learned(self) -> dict[str, Any]:
        return {"order_seed": self._order_seed, "drawn": self._drawn}

    def _check_state(self, state: Any) -> None:
        super()._check_state(state)
        _check_place(self, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self._start_epoch(state["order_seed"])
        self._drawn = state["drawn"]


def _draw_from_epoch(order: np.ndarray, number: int, draw: Draw) -> None:
    """Write batch `number` of the epoch that goes through the samples in this order."""
    size, count = len(draw.indices), len(order)
    draw.indices[:] = order[number * size : (number + 1) * size]
    draw.probs[:], draw.loss_weights[:] = size / count, 1.0 / size


def _check_place(selection: Selection, state: dict[str, Any]) -> None:
    _checks.integer("state['order_seed']", state["order_seed"], low=0)
    _checks.integer("state['drawn']", state["drawn"], low=0, high=selection.draws_per_epoch)
