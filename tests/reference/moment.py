"""The running estimate of the second moment, by the definition: everything from the whole history, every time."""

from __future__ import annotations

import math

import numpy as np


class SlowMoment:
    """Keeps all batches."""

    def __init__(self, memory: float, record_memory: float) -> None:
        self.memory, self.record_memory = memory, record_memory
        self.history: list[np.ndarray] = []

    def note(self, scores, draw_probs, probs) -> None:
        s, d, p = (np.asarray(values, dtype=float) for values in (scores, draw_probs, probs))
        sums = (s**2 / (d * p)).sum(), (p / d).sum(), (s**2 / d).sum(), (1.0 / d).sum()
        self.history.append(np.array(sums))

    @staticmethod
    def shares(count: int, memory: float) -> np.ndarray:
        """Return the weight of each of `count` batches, the oldest first."""
        return memory ** np.arange(count)[::-1] / np.sum(memory ** np.arange(count))

    def averages(self, count: int) -> np.ndarray:
        """Return the four sums, averaged over the first `count` batches."""
        return self.shares(count, self.memory) @ np.array(self.history[:count])

    def ratio(self) -> float:
        chosen, mass, uniform, count = self.averages(len(self.history))
        return chosen * mass / (uniform * count)

    def error(self) -> float:
        """Return the ratio times its relative error: the spread of single batches, and how many of them count."""
        signs, total = np.array([1.0, 1.0, -1.0, -1.0]), len(self.history)
        deviations = [signs @ (self.history[t] / self.averages(t + 1)) for t in range(total)]
        spread = self.shares(total, self.memory) @ np.square(deviations)
        return self.ratio() * math.sqrt(spread * np.sum(self.shares(total, self.memory) ** 2))

    def excess(self) -> float:
        found = expected = 0.0
        for t in range(1, len(self.history)):
            share = self.record_memory ** (len(self.history) - 1 - t)
            chosen, _, uniform, _ = self.averages(t)
            found += share * self.history[t][0] / chosen
            expected += share * self.history[t][2] / uniform
        return max(found / expected, 1.0) if expected > 0.0 else 1.0
