"""The queue by its definition: all samples looked at for every event, nothing kept that can be computed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.reference.attention import SlowAttention
from tests.reference.moment import SlowMoment

_MASK = 2**64 - 1


def splitmix(seed: int) -> Callable[[], float]:
    """Return a source of numbers in [0, 1): SplitMix64, as its authors print it."""
    state = seed

    def take() -> float:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) / 2**53

    return take


class SlowQueue:
    """n samples on one axis. `uniform` gives the place of every unit that begins, as a share of its length."""

    def __init__(self, n: int, batch_size: int, exploration: float, uniform: Callable[[], float]) -> None:
        self.n, self.uniform, self.position = n, uniform, 0.0
        self.low = exploration if n >= 2 * batch_size else 1.0
        self.share = 1.0 / (2 * batch_size)
        self.weights = [1.0] * n
        self.rates = [1.0] * n
        self.begins = [0.0] * n
        self.places = [uniform() for _ in range(n)]
        self.visited = [False] * n
        self.scores: list[float] = []
        window = min(max(n // batch_size / 5, 10.0), 50.0)
        moment = SlowMoment(1.0 - 1.0 / window, 1.0 - 1.0 / max(n // batch_size, 50))
        self.attention = SlowAttention(n, moment)

    def highest_rate(self) -> float:
        return max(self.share * min(sum(self.rates), self.n), self.low)

    def rate_by_weight(self, i: int) -> float:
        return min(max(self.n * self.weights[i] / math.fsum(self.weights), self.low), self.highest_rate())

    def event(self, i: int) -> tuple[float, int]:
        """Return where sample i is met next: its unit ends, or it is due. At one place, ends come first."""
        return (self.begins[i] + 1.0 / self.rates[i], -1 - i) if self.visited[i] else (self.places[i], i)

    def begin_unit(self, i: int) -> None:
        self.begins[i] += 1.0 / self.rates[i]
        self.rates[i] = self.rate_by_weight(i)
        self.places[i] = self.begins[i] + self.uniform() / self.rates[i]
        self.visited[i] = False

    def draw(self, k: int) -> tuple[list[int], list[float]]:
        """Return the next k distinct samples that are due, and kr/Σr at the place where each of them is met."""
        batch: list[int] = []
        probs: list[float] = []
        held: set[int] = set()
        while len(batch) < k:
            where, number = min(self.event(i) for i in range(self.n) if i not in held)
            self.position = max(self.position, where)
            if number < 0:
                self.begin_unit(-1 - number)
            elif number in batch:
                held.add(number)
            else:
                batch.append(number)
                probs.append(k * self.rates[number] / math.fsum(self.rates))
                self.visited[number] = True
        self.attention.draws += 1
        return batch, probs

    def update(self, indices, probs, scores) -> None:
        if self.attention.awake:
            self.learn(indices, probs, scores)
        if self.attention.note(scores, probs):
            self.weights = [1.0] * self.n

    def learn(self, indices, probs, scores, *, rate=0.3, bound=1.0, memory=0.9) -> None:
        rates = [self.rate_by_weight(i) for i in indices]
        now = [len(indices) * r / self.n for r in rates]
        squares = [(score / r) ** 2 for score, r in zip(scores, rates, strict=True)]
        # A sample that the rates of now would draw twice as often as it was drawn counts twice.
        self.scores.append(float(np.mean([s * p / u for s, p, u in zip(squares, now, probs, strict=True)])))
        mean = np.average(self.scores, weights=memory ** np.arange(len(self.scores))[::-1])
        if mean == 0.0:
            return
        total, high = math.fsum(self.weights), self.highest_rate()
        for i, s, r in zip(indices, squares, rates, strict=True):
            step = float(np.clip(rate * (s / mean - 1.0), -bound, bound))
            weight = self.weights[i] * math.exp(min(step, 0.0) if r >= high else step)
            self.weights[i] = min(max(weight, self.low * total / self.n), max(self.share, self.low / self.n) * total)
