"""Which batches are measured, by the definition: everything is computed from the whole history, every time."""

from __future__ import annotations

import numpy as np


class SlowAttention:
    """Keeps all measured batches. `memory` is that of the second moment."""

    def __init__(self, n: int, memory: float) -> None:
        self.n, self.memory = n, memory
        self.history: list[tuple[np.ndarray, np.ndarray]] = []
        self.draws = self.first = 0
        self.awake, self.best_before = True, 1.0

    def listens(self) -> bool:
        return self.awake or self.draws % 16 == 0

    def sums(self, memory: float) -> np.ndarray:
        """Return Σ s/p, Σ s²/p, Σ 1/p, Σ s²/p² and k, averaged over all batches."""
        each = [[(s / p).sum(), (s**2 / p).sum(), (1 / p).sum(), (s**2 / p**2).sum(), len(s)] for s, p in self.history]
        return np.average(each, axis=0, weights=memory ** np.arange(len(each))[::-1])

    def best(self) -> float:
        scores, squares, count, _, _ = self.sums(0.9)
        return scores**2 / (squares * count) if squares > 0.0 else 1.0

    def reached(self) -> float:
        _, squares, count, chosen, size = self.sums(self.memory)
        return chosen * size / (squares * count) if squares > 0.0 else float("nan")

    def note(self, scores, probs) -> bool:
        """Take note of a batch; return whether measuring stops with it."""
        self.history.append((np.asarray(scores, dtype=float), np.asarray(probs, dtype=float)))
        measured = self.history[self.first :]
        if not self.awake:
            self.best_before = max(self.best_before, self.best())
            self.awake = self.best() < 0.8 * self.best_before
            self.first = len(self.history)
            return False
        tried = sum(len(s) for s, _ in measured) >= 3 * self.n and self.reached() > 0.95
        if len(measured) >= 50 and (tried or self.best() > 0.95):
            self.awake, self.best_before = False, self.best()
        return not self.awake
