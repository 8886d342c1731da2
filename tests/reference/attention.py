"""Which batches are measured, by the definition: everything is computed from the whole history, every time."""

from __future__ import annotations

import numpy as np

from tests.reference.moment import SlowMoment


class SlowAttention:
    """Keeps all measured batches."""

    def __init__(self, n: int, moment: SlowMoment) -> None:
        self.n, self.moment = n, moment
        self.history: list[tuple[np.ndarray, np.ndarray]] = []
        self.draws = self.first = self.above = 0
        self.awake, self.best_before = True, 1.0

    def listens(self) -> bool:
        return self.awake or self.draws % 16 == 0

    def best(self) -> float:
        each = [[(s / p).sum(), (s**2 / p).sum(), (1 / p).sum()] for s, p in self.history]
        scores, squares, count = np.average(each, axis=0, weights=0.9 ** np.arange(len(each))[::-1])
        return scores**2 / (squares * count) if squares > 0.0 else 1.0

    def note(self, scores, probs) -> bool:
        """Take note of a batch; return whether measuring stops with it."""
        self.history.append((np.asarray(scores, dtype=float), np.asarray(probs, dtype=float)))
        self.moment.note(scores, probs, probs)
        measured = self.history[self.first :]
        if not self.awake:
            self.best_before = max(self.best_before, self.best())
            self.awake = self.best() < 0.8 * self.best_before
            self.first, self.above = len(self.history), 0
            return False
        self.above = self.above + len(scores) if self.moment.ratio() > 0.95 else 0
        tried = sum(len(s) for s, _ in measured) >= 3 * self.n and self.above >= self.n
        if len(measured) >= 50 and (tried or self.best() > 0.95):
            self.awake, self.best_before = False, self.best()
        return not self.awake
