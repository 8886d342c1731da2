"""The bandits by the book: NumPy over all n samples at every step, weights kept as logarithms."""

from __future__ import annotations

import numpy as np


def inclusion_probs(weights: np.ndarray, batch_size: int, exploration: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (p, capped) by Algorithm 2, sorting all weights, with the cap's index counted from 0 (docs/paper.md)."""
    n = len(weights)
    if batch_size == n:
        return np.ones(n), np.ones(n, dtype=bool)
    w, capped = np.array(weights, dtype=float), np.zeros(n, dtype=bool)
    if exploration < 1.0:
        share = (1.0 / batch_size - exploration / n) / (1.0 - exploration)
        descending = np.argsort(-w, kind="stable")
        for i in range(n):
            rest = w[descending[i:]].sum()
            tau = share * rest / (1.0 - i * share)
            if i * share >= 1.0 or w[descending[i]] < tau:
                break
            capped[descending[i]] = True
        left = 1.0 - capped.sum() * share
        p = batch_size * ((1.0 - exploration) * w * left / w[~capped].sum() + exploration / n)
    else:
        p = np.full(n, batch_size / n)
    p[capped] = 1.0
    return p, capped


class SlowCombinatorialBandit:
    """Weights, probabilities and the three feedback rules of AdamCB; scale-free feedback with its gate."""

    def __init__(
        self, n: int, batch_size: int, exploration: float, feedback: str, max_norm=None, rate=0.3, min_gain=0.1
    ) -> None:
        self.n, self.k, self.gamma, self.feedback, self.rate = n, batch_size, exploration, feedback, rate
        self.min_gain = min_gain if feedback == "scale-free" else 0.0  # 0: no gate
        self.log_w = np.zeros(n)
        self.bound, self.known = (0.0, False) if max_norm is None else (max_norm, True)
        self.scores: list[float] = []
        self.moments: list[np.ndarray] = []

    def draws_by_weight(self, drawn: int) -> bool:
        """Whether the next batch is drawn by weight, by a ratio in which later batches count more.

        `drawn`: how many batches this epoch has had.
        """
        if self.min_gain == 0.0 or not self.moments:
            return self.min_gain == 0.0
        ages = np.arange(len(self.moments))[::-1]
        chosen, mass, uniform, count = np.average(self.moments, axis=0, weights=0.98**ages)
        ratio = (chosen / uniform) / (count / mass)
        return ratio < 1.0 - self.min_gain and drawn + 1 > ratio * (self.n // self.k)

    def draw_probs(self, drawn: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (p, capped) of the next draw."""
        if self.draws_by_weight(drawn):
            return self.probs()
        return np.full(self.n, self.k / self.n), np.zeros(self.n, dtype=bool)

    def probs(self) -> tuple[np.ndarray, np.ndarray]:
        return inclusion_probs(np.exp(self.log_w - self.log_w.max()), self.k, self.gamma)

    def update(self, indices, draw_probs, norms) -> None:
        if not self.known:
            self.bound = max(self.bound, max(norms))
        p_min = self.k * self.gamma / self.n
        norms, u = np.asarray(norms), np.asarray(draw_probs)
        probs = self.probs()[0][indices] if self.feedback == "scale-free" else u
        self.scores.append(float(np.mean((norms / probs) ** 2 * probs / u)))
        least = self.least()
        parts = (norms**2 / probs / u, probs / u, norms**2 / u, 1 / u)
        self.moments.append(np.array([part.sum() for part in parts]))
        for i, p, g in zip(indices, probs, norms, strict=True):
            if self.feedback == "scale-free":
                step = float(np.clip(self.rate * ((g / p) ** 2 / self.mean_score() - 1.0), -1.0, 1.0))
                self.log_w[i] = max(self.log_w[i] + (min(step, 0.0) if p == 1.0 else step), least)
            elif p < 1.0:
                loss = p_min**2 / self.bound**2 * (-(g**2) / p**2 + self.bound**2 / p_min**2)
                estimate = loss if self.feedback == "listing" else loss / p
                self.log_w[i] -= self.k * self.gamma * estimate / self.n

    def least(self) -> float:
        """Return the logarithm of the weight that adds a thousandth of p_min to a probability."""
        probs, capped = self.probs()
        heaviest = np.argmax(np.where(capped, -np.inf, self.log_w))
        p_min = self.k * self.gamma / self.n
        if capped.all() or probs[heaviest] <= p_min:
            return -np.inf
        return self.log_w[heaviest] + np.log(1e-3 * p_min / (probs[heaviest] - p_min))

    def mean_score(self) -> float:
        ages = np.arange(len(self.scores))[::-1]
        return float(np.average(self.scores, weights=0.9**ages))


class SlowReplacementBandit:
    """Weights and probabilities of AdamBS, in both forms; `p` sums to 1."""

    def __init__(self, n: int, batch_size: int, exploration: float, form: str, max_norm=None) -> None:
        self.n, self.k, self.gamma, self.form = n, batch_size, exploration, form
        self.w = np.full(n, 1.0 / n) if form == "original" else np.ones(n)
        self.bound, self.known = (0.0, False) if max_norm is None else (max_norm, True)

    def probs(self) -> np.ndarray:
        if self.form == "original":
            return self.w
        return (1.0 - self.gamma) * self.w / self.w.sum() + self.gamma / self.n

    def update(self, indices, probs, norms) -> None:
        if not self.known:
            self.bound = max(self.bound, max(norms))
        p_min = self.gamma / self.n
        estimate = np.zeros(self.n)
        for i, p, g in zip(indices, probs, norms, strict=True):
            loss = p_min**2 / self.bound**2 * (-(g**2) / p**2 + self.bound**2 / p_min**2)
            estimate[i] += loss / (self.k * p)
        self.w = self.w * np.exp(-self.gamma * estimate / self.n)
        if self.form == "original":
            self.w = project(self.w, p_min)


def project(w: np.ndarray, floor: float) -> np.ndarray:
    """Return argmin over {q ≥ floor, Σq = 1} of KL(q‖w): max(floor, c·w), with c found by bisection."""
    low, high = 0.0, 1.0 / w.min()
    for _ in range(200):
        c = 0.5 * (low + high)
        low, high = (c, high) if np.maximum(floor, c * w).sum() < 1.0 else (low, c)
    return np.maximum(floor, high * w)
