"""How scores change weights: each rule gives a factor for the weight of every sample in a draw.

Letters: p a sample's probability, ‖g‖ its score (by default the norm of its unweighted gradient), L a bound on the
scores, p_min the smallest probability possible, γ exploration, n the number of samples, K the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from adamcb import _checks
from adamcb._jit import jit
from adamcb.selection._moment import LEAST_SHARE
from adamcb.selection._selection import largest

# Squares of ‖g‖/p stay finite below this.
_LARGEST_SCORE = 1e140


class Visit(NamedTuple):
    """What a feedback rule is told about the k samples of a draw.

    Attributes:
        scores: float64[k], ‖g‖.
        probs: float64[k], the probabilities that the weights give these samples now.
        draw_probs: float64[k], the probabilities with which they were drawn. They differ from `probs` if the batch was
            drawn from a reshuffled epoch, or if weights have changed since.
        min_prob: p_min.
        max_prob: A sample whose probability has reached this cannot be drawn more often, whatever its weight is.
    """

    scores: np.ndarray
    probs: np.ndarray
    draw_probs: np.ndarray
    min_prob: float
    max_prob: float = 1.0


class Feedback:
    """A rule for how scores change weights. A rule of your own is a subclass that implements `factors`.

    A rule is an immutable value: the bandit keeps what the rule has learned, so several bandits may share one object.
    It has no say in what is drawn; the bandit's gate decides that.

    Attributes:
        min_share: No weight falls so far that it adds less than this share of `min_prob` to its sample's probability.
            Otherwise a sample that was quiet for many epochs would need as many to be noticed again, although its
            probability comes from exploration alone all that time.
        ranges: The least and the largest value of what the rule knows, by name, for a look at saved states.

    Example:
        >>> class Double(Feedback):
        ...     def factors(self, visit, state):
        ...         return np.where(visit.scores > 1.0, 2.0, 0.5), state
        >>> from adamcb.selection import CombinatorialBandit
        >>> bandit = CombinatorialBandit(10, 2, feedback=Double())
        >>> draw = bandit.draw()
        >>> bandit.update(draw, [0.3, 3.0])
        >>> bandit.weights[draw.indices]
        array([0.5, 2. ])
    """

    min_share: ClassVar[float] = 1e-3
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def start(self) -> dict[str, float]:
        """Return what the rule knows before the first draw: numbers by name. The bandit keeps and saves them."""
        return {}

    def check(self, scores: np.ndarray) -> None:
        """Raise if the rule cannot use `scores` (float64[k], finite, at or above 0). Changes nothing."""
        _refuse_above(_LARGEST_SCORE, "", scores)

    def factors(self, visit: Visit, state: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        """Return what each weight is multiplied by, float64[k], and what the rule knows afterwards.

        `state` is what `start` or the last call of `factors` returned. It must not be changed in place.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `factors`.")

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the rule: what `repr` shows, and what a saved state must agree with."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.settings().items())})"


def _refuse_above(limit: float, name: str, scores: np.ndarray) -> None:
    """Raise if a score is above `limit`; the message writes `name` before it."""
    if largest(scores) > limit:
        worst = int(scores.argmax())
        raise ValueError(f"`scores` must be at most {name}{limit:g}, got scores[{worst}]={scores[worst]}.")


@dataclass(frozen=True, repr=False)
class ScaleFree(Feedback):
    """Δ log w = clip(η·(s/G − 1), −b, b), where s = (‖g‖/p)² and G is a moving average of the batch mean of s.

    Like the paper's bandit it descends on the variance Σ‖g‖²/p and rests where probabilities are proportional to norms:
    there s = G for every sample. Its scale is what was seen lately, not the worst case L²/p_min².

    A capped sample (p = 1) cannot be drawn more often, so its weight does not rise. It may fall; otherwise a sample
    once capped would stay in every batch for ever.

    p is the probability that the weights give the sample now, not that of the draw. If batches are drawn far ahead of
    the feedback, a sample with too low a weight is in many of them, and each would raise the weight again for the same
    reason.

    A batch that was not drawn by these probabilities (from a reshuffled epoch, or before weights changed) is learned
    from as well: in G each of its samples counts as often as p would have drawn it.

    Args:
        rate: η, above 0.
        bound: b, above 0: the largest change of log w.
        memory: The weight of the past in G, in [0, 1): 0.9 averages over about 10 batches.

    Example:
        >>> from adamcb import QueueBandit
        >>> bandit = QueueBandit(1000, 32, feedback=ScaleFree(rate=0.1))  # learns a third as fast
    """

    rate: float = 0.3
    bound: float = 1.0
    memory: float = 0.9

    ranges = {"mean": (0.0, math.inf), "trust": (0.0, 1.0 + 1e-9)}  # rounded

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _checks.real("rate", self.rate, low=0.0, low_open=True))
        object.__setattr__(self, "bound", _checks.real("bound", self.bound, low=0.0, low_open=True))
        object.__setattr__(self, "memory", _checks.real("memory", self.memory, low=0.0, high=1.0, high_open=True))

    def start(self) -> dict[str, float]:
        """Return an average of nothing: `mean` starts at 0, and dividing it by `trust` undoes that."""
        return {"mean": 0.0, "trust": 0.0}

    def factors(self, visit: Visit, state: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        """Return what each weight is multiplied by, and the averages that include this batch."""
        factors, mean, trust = _scale_free_factors(
            *visit, state["mean"], state["trust"], self.rate, self.bound, self.memory
        )
        return factors, {"mean": mean, "trust": trust}


@jit
def _scale_free_factors(scores, probs, draw_probs, min_prob, max_prob, mean, trust, rate, bound, memory):
    total = 0.0
    for j in range(len(scores)):
        total += scores[j] * scores[j] / draw_probs[j] / max(probs[j], LEAST_SHARE * draw_probs[j])
    mean = memory * mean + (1.0 - memory) * total / len(scores)
    trust = memory * trust + (1.0 - memory)
    factors, scale = np.ones(len(scores)), mean / trust
    if scale > 0.0:
        for j in range(len(scores)):
            score = (scores[j] / max(probs[j], LEAST_SHARE * draw_probs[j])) ** 2
            most = bound if probs[j] < max_prob else 0.0
            factors[j] = np.exp(min(max(rate * (score / scale - 1.0), -bound), most))
    return factors, mean, trust


@dataclass(frozen=True, repr=False)
class PaperFeedback(Feedback):
    """What the paper's two rules share: the bandit loss ℓ, and L, a bound that is given or learned (Algorithm 7).

    Samples that were capped (p = 1, the paper's S_null) keep their weight.
    """

    max_norm: float | None = None

    min_share = 0.0
    ranges = {"largest_norm": (0.0, math.inf)}
    _divide_by_prob = True

    def __post_init__(self) -> None:
        if self.max_norm is not None:
            object.__setattr__(self, "max_norm", _checks.real("max_norm", self.max_norm, low=0.0, low_open=True))

    def start(self) -> dict[str, float]:
        """Return L: the bound, or 0 if no norm was seen yet."""
        return {"largest_norm": 0.0 if self.max_norm is None else self.max_norm}

    def check(self, scores: np.ndarray) -> None:
        """Raise if a norm breaks the bound: its loss would be negative."""
        if self.max_norm is None:
            super().check(scores)
        else:
            _refuse_above(self.max_norm, "max_norm=", scores)

    def factors(self, visit: Visit, state: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        """Return what each weight is multiplied by, and L after these norms. The rate is p_min = Kγ/n."""
        return self.factors_at_rate(visit.min_prob, visit, state)

    def factors_at_rate(
        self, rate: float, visit: Visit, state: dict[str, float]
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Return the factors for a rate other than p_min, and L after these norms."""
        max_norm = state["largest_norm"]
        if self.max_norm is None:
            max_norm = max(max_norm, largest(visit.scores))
        factors = _paper_factors(
            visit.scores, visit.draw_probs, visit.min_prob, visit.max_prob, max_norm, rate, self._divide_by_prob
        )
        return factors, {"largest_norm": max_norm}


class ProofFeedback(PaperFeedback):
    """Δ log w = −(Kγ/n)·ℓ/p with ℓ = 1 − (p_min‖g‖/(L p))², as in the proof of Lemma 2. p is that of the draw.

    Args:
        max_norm: L, a bound on the norms; a norm above it is an error. None: the largest norm seen so far.

    Example:
        >>> from adamcb import CombinatorialBandit
        >>> bandit = CombinatorialBandit(1000, 32, feedback=ProofFeedback(max_norm=10.0))
    """


class ListingFeedback(PaperFeedback):
    """Δ log w = −(Kγ/n)·ℓ with ℓ = 1 − (p_min‖g‖/(L p))², as Algorithm 3 is printed; it hardly learns.

    Args:
        max_norm: L, a bound on the norms; a norm above it is an error. None: the largest norm seen so far.

    Example:
        >>> from adamcb import CombinatorialBandit
        >>> bandit = CombinatorialBandit(1000, 32, feedback=ListingFeedback())
    """

    _divide_by_prob = False


@jit
def bandit_loss(norm, prob, max_norm, min_prob):
    """Return ℓ = p_min²/L²·(−‖g‖²/p² + L²/p_min²) = 1 − (p_min‖g‖/(L p))², in [0, 1] (Algorithms 3, 5 and 7).

    While every norm seen is 0, so is L, and ℓ is 1: its value at norm 0 for any L.
    """
    ratio = min_prob * norm / (max_norm * prob) if norm > 0.0 else 0.0
    return max(1.0 - ratio * ratio, 0.0)


@jit
def _paper_factors(norms, probs, min_prob, max_prob, max_norm, rate, divide_by_prob):
    factors = np.ones(len(probs))
    for j in range(len(probs)):
        if probs[j] < max_prob:
            loss = bandit_loss(norms[j], probs[j], max_norm, min_prob)
            factors[j] = np.exp(-rate * (loss / probs[j] if divide_by_prob else loss))
    return factors


FEEDBACKS: dict[str, Feedback] = {
    "scale-free": ScaleFree(),
    "proof": ProofFeedback(),
    "listing": ListingFeedback(),
}


def as_feedback(feedback: Feedback | str) -> Feedback:
    """Return `feedback`, or the rule that it is an alias of."""
    if isinstance(feedback, Feedback):
        return feedback
    if isinstance(feedback, str):
        return FEEDBACKS[_checks.one_of("feedback", feedback, FEEDBACKS)]
    raise TypeError(f"`feedback` must be a Feedback or an alias, got feedback of type {type(feedback).__name__}.")


def checked_factors(factors: Any, size: int) -> np.ndarray:
    """Return what a rule returned as float64[`size`], or raise unless weights can be multiplied by it."""
    values = np.asarray(factors, dtype=np.float64)
    if values.shape != (size,) or not largest(values) >= 0.0:
        rule = f"return {size} finite numbers at or above 0 as factors"
        raise ValueError(f"`feedback` must {rule}, got an array of shape {values.shape}.")
    return values


def check_feedback_state(feedback: Feedback, state: Any) -> None:
    """Raise unless `state` holds the numbers that `feedback` learns."""
    saved = state if isinstance(state, dict) else {}
    for name in feedback.start():
        low, high = feedback.ranges.get(name, (-math.inf, math.inf))
        _checks.real(f"state['feedback']['{name}']", saved.get(name), low=low, high=high)
