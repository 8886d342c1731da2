"""The rivals' formulas, as plainly as their papers put them: loops over Python floats."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


def mixed(scores: Sequence[float], exploration: float) -> list[float]:
    """Return pᵢ = (1 − γ) sᵢ/Σs + γ/n."""
    total = sum(scores)
    return [(1.0 - exploration) * score / total + exploration / len(scores) for score in scores]


class VarianceReducer:
    """Algorithm 1 of Borsos, Krause and Levy (2018), with γ = L·n/θ and θ = (n/T)^(1/3)."""

    def __init__(self, num_samples: int, rounds: int) -> None:
        self.theta = (num_samples / rounds) ** (1 / 3)
        self.sums = [0.0] * num_samples
        self.bound: float | None = None

    def probs(self) -> list[float]:
        if self.bound is None:
            return [1.0 / len(self.sums)] * len(self.sums)
        gamma = self.bound * len(self.sums) / self.theta
        return mixed([math.sqrt(value + gamma) for value in self.sums], self.theta)

    def update(self, indices: Sequence[int], norms: Sequence[float]) -> None:
        probs = self.probs()
        for index, norm in zip(indices, norms, strict=True):
            self.sums[index] += norm**2 / probs[index]
        if self.bound is None:
            self.bound = sum(norm**2 for norm in norms) / len(norms)


def pruned_epoch(scores: Sequence[float], ratio: float) -> tuple[set[int], set[int], int]:
    """Return InfoBatch's samples that must stay, those of which some are left out, and how many of these stay."""
    mean = sum(scores) / len(scores)
    easy = {index for index, score in enumerate(scores) if score < mean}
    return set(range(len(scores))) - easy, easy, int((1.0 - ratio) * len(easy))


class LossPercentiles:
    """Selective-Backprop's probabilities, a loss at a time."""

    def __init__(self, history: int, beta: float) -> None:
        self.history: deque[float] = deque(maxlen=history)
        self.beta = beta

    def probs(self, losses: Sequence[float]) -> list[float]:
        self.history.extend(losses)
        ordered = sorted(self.history)
        ranks = {loss: [place for place, old in enumerate(ordered, start=1) if old == loss] for loss in losses}
        return [(sum(ranks[loss]) / len(ranks[loss]) / len(ordered)) ** self.beta for loss in losses]


def batch_increment(scores: Sequence[float]) -> float:
    """Return τ = (1 − ‖g − u‖²/‖g‖²)^(−1/2) of Katharopoulos and Fleuret (2018), Algorithm 1, line 17."""
    total, uniform = sum(scores), 1.0 / len(scores)
    probs = [score / total for score in scores]
    distance = sum((prob - uniform) ** 2 for prob in probs)
    return (1.0 - distance / sum(prob**2 for prob in probs)) ** -0.5
