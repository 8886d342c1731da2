"""How gradient norms change weights: each form gives a factor for the weight of every sample of a draw.

Letters: p a sample's probability by its weight, ‖g‖ the norm of its unweighted gradient, L a bound on the norms, p_min
the smallest probability possible, γ exploration, n the number of samples, K the batch size.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from adamcb import _checks
from adamcb.selection._gate import LEAST_SHARE, Gate, batch_sums
from adamcb.selection._tree import jit

# Squares of ‖g‖/p stay finite below this.
_LARGEST_NORM = 1e140


class Feedback(Protocol):
    """What a bandit needs of a form of feedback."""

    def check(self, norms: np.ndarray) -> None:
        """Raise if a norm cannot be used; change nothing."""
        ...

    def factors(self, probs: np.ndarray, norms: np.ndarray, drawn_with: np.ndarray) -> np.ndarray:
        """Return what the weights are multiplied by, for every occurrence of a sample in the draw.

        `probs` are the bandit's own probabilities, `drawn_with` those of the draw: others if the epoch is reshuffled.
        """
        ...

    def pays(self, progress: float) -> bool:
        """Whether to draw by the weights, rather than from a reshuffled epoch, when so much of the epoch is done."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return what a saved state must agree with."""
        ...

    def state_dict(self) -> dict[str, float]:
        """Return what was learned about the norms."""
        ...

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        ...


class NormBound:
    """L: a bound given once and for all, or the largest norm seen so far (Algorithm 7)."""

    def __init__(self, max_norm: float | None) -> None:
        self.given = None if max_norm is None else _checks.real("max_norm", max_norm, low=0.0, low_open=True)
        self.value = 0.0 if self.given is None else self.given

    def check(self, norms: np.ndarray) -> None:
        """Raise if a norm is no finite number at or above 0, or breaks the bound: its loss would be negative."""
        limit = _LARGEST_NORM if self.given is None else self.given
        if not _largest(norms) <= limit:
            _checks.vector("scores", norms)
            worst = int(norms.argmax())
            raise ValueError(f"`scores` must be at most max_norm={limit:g}, got scores[{worst}]={norms[worst]}.")

    def observe(self, norms: np.ndarray) -> float:
        """Take note of `norms` and return L."""
        if self.given is None:
            self.value = max(self.value, _largest(norms))
        return self.value

    def settings(self) -> dict[str, Any]:
        """Return what a saved state must agree with."""
        return {"max_norm": self.given}

    def state_dict(self) -> dict[str, float]:
        """Return what was learned about the norms."""
        return {"largest_norm": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.value = state["largest_norm"]


@jit
def _largest(norms):
    """Return the largest norm, or NaN if one of them is not a finite number at or above 0."""
    largest = 0.0
    for norm in norms:
        if not 0.0 <= norm < np.inf:
            return np.nan
        largest = max(largest, norm)
    return largest


@jit
def bandit_loss(norm, prob, max_norm, min_prob):
    """Return ℓ = p_min²/L²·(−‖g‖²/p² + L²/p_min²) = 1 − (p_min‖g‖/(L p))², in [0, 1] (Algorithms 3, 5 and 7).

    As long as every norm seen is 0, so is L, and ℓ is 1: its value at norm 0 for any L.
    """
    ratio = min_prob * norm / (max_norm * prob) if norm > 0.0 else 0.0
    return max(1.0 - ratio * ratio, 0.0)


@jit
def _bandit_factors(probs, norms, max_norm, min_prob, rate, listing, keep_capped):
    factors = np.ones(len(probs))
    for j in range(len(probs)):
        if probs[j] < 1.0 or not keep_capped:
            loss = bandit_loss(norms[j], probs[j], max_norm, min_prob)
            factors[j] = np.exp(-rate * (loss if listing else loss / probs[j]))
    return factors


@jit
def _scale_free_factors(probs, norms, drawn_with, mean, trust, memory, rate):
    """Return a factor for every sample, the batch's sums, and the averages of which it is a part now."""
    sums = batch_sums(probs, norms, drawn_with)
    mean = memory * mean + (1.0 - memory) * sums[0] / len(probs)
    trust = memory * trust + (1.0 - memory)
    factors, scale = np.ones(len(probs)), mean / trust
    if scale > 0.0:
        for j in range(len(probs)):
            score = (norms[j] / max(probs[j], LEAST_SHARE * drawn_with[j])) ** 2
            factors[j] = np.exp(min(max(rate * (score / scale - 1.0), -1.0), 1.0 if probs[j] < 1.0 else 0.0))
    return factors, sums, mean, trust


class BanditFeedback(NormBound):
    """Δ log w = −rate·ℓ/p (as in the proof of Lemma 2, and in Algorithm 5), or −rate·ℓ (as Algorithm 3 is printed).

    With `keep_capped`, samples with p = 1 (S_null) keep their weight.
    """

    def __init__(
        self, rate: float, min_prob: float, max_norm: float | None, *, listing: bool = False, keep_capped: bool = True
    ) -> None:
        super().__init__(max_norm)
        self.rate, self.min_prob, self.listing, self.keep_capped = rate, min_prob, listing, keep_capped

    def pays(self, progress: float) -> bool:
        """Return True: the paper's bandit always draws by the weights."""
        return True

    def factors(self, probs: np.ndarray, norms: np.ndarray, drawn_with: np.ndarray) -> np.ndarray:
        """Return what the weights are multiplied by, for every occurrence of a sample in the draw."""
        max_norm = self.observe(norms)
        return _bandit_factors(probs, norms, max_norm, self.min_prob, self.rate, self.listing, self.keep_capped)


class ScaleFreeFeedback(NormBound):
    """Δ log w = clip(η·(s/G − 1), −1, 1), with s = (‖g‖/p)² and G a moving average of the mean of s over a batch.

    As the bandit's step on the variance Σ‖g‖²/p, it rests where probabilities are in proportion to norms: there s = G
    for all. Its scale is what was seen lately instead of the worst case L²/p_min².

    A capped sample (p = 1) cannot be drawn more often, so its weight does not rise; but it may fall, or a sample once
    capped would stay in every batch for ever.

    p is the probability that the weights give now, whoever drew the sample, and when: many batches drawn ahead would
    else push the weight of a sample that is in all of them again and again for the same reason.

    `gate` tells how far drawing by the weights pays. Weights are learned all the same where it does not: a sample of a
    reshuffled batch, drawn with another probability than p, counts in G as often as p would have drawn it.
    """

    memory = 0.9

    def __init__(self, rate: float, max_norm: float | None, gate: Gate) -> None:
        super().__init__(max_norm)
        self.rate, self.gate = rate, gate
        self.mean, self.trust = 0.0, 0.0  # of s; `trust` undoes that the moving average starts at 0

    def pays(self, progress: float) -> bool:
        """Whether to draw by the weights, rather than from a reshuffled epoch, when so much of the epoch is done."""
        return self.gate.is_open(progress)

    def factors(self, probs: np.ndarray, norms: np.ndarray, drawn_with: np.ndarray) -> np.ndarray:
        """Return what the weights are multiplied by, for every sample of the draw."""
        factors, sums, self.mean, self.trust = _scale_free_factors(
            probs, norms, drawn_with, self.mean, self.trust, self.memory, self.rate
        )
        self.gate.note(sums)
        return factors

    def settings(self) -> dict[str, Any]:
        """Return what a saved state must agree with."""
        return {**super().settings(), "rate": self.rate, "min_gain": self.gate.min_gain}

    def state_dict(self) -> dict[str, float]:
        """Return what was learned about the norms."""
        return {"mean": self.mean, "trust": self.trust, **self.gate.state_dict()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.mean, self.trust = state["mean"], state["trust"]
        self.gate.load_state_dict(state)
