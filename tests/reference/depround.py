"""DepRound, twice, slowly: the distribution of the textbook form by enumeration, and the ordered form in O(n)."""

from __future__ import annotations

import numpy as np


def pair_outcomes(p: float, q: float) -> list[tuple[float, tuple[float, float]]]:
    """Return what one step of Algorithm 6 makes of a pair, each with its chance."""
    alpha, beta = min(1.0 - p, q), min(p, 1.0 - q)
    return [(beta / (alpha + beta), (p + alpha, q - alpha)), (alpha / (alpha + beta), (p - beta, q + beta))]


def textbook_distribution(probs: np.ndarray) -> dict[frozenset[int], float]:
    """Return the chance of every subset under Algorithm 6, the unresolved sample always paired with the next.

    `probs` are taken in the order given. All outcomes of all pairs are followed; nothing is sampled.
    """
    fixed = frozenset(np.flatnonzero(probs >= 1.0).tolist())
    states: dict[tuple[frozenset[int], int | None, float], float] = {(fixed, None, 0.0): 1.0}
    for j in np.flatnonzero((probs > 0.0) & (probs < 1.0)).tolist():
        following: dict[tuple[frozenset[int], int | None, float], float] = {}
        for (chosen, i, mass), chance in states.items():
            if i is None:
                branches = [(1.0, (chosen, j, float(probs[j])))]
            else:
                branches = [(c, _settle(chosen, (i, p), (j, q))) for c, (p, q) in pair_outcomes(mass, float(probs[j]))]
            for c, state in branches:
                following[state] = following.get(state, 0.0) + c * chance
        states = following
    result: dict[frozenset[int], float] = {}
    for (chosen, i, mass), chance in states.items():
        subset = chosen if i is None or mass < 0.5 else chosen | {i}  # what rounding leaves of the last one
        result[subset] = result.get(subset, 0.0) + chance
    return result


def _settle(
    chosen: frozenset[int], *pair: tuple[int, float], tolerance: float = 1e-12
) -> tuple[frozenset[int], int | None, float]:
    unresolved, mass = None, 0.0
    for i, p in pair:
        if p >= 1.0 - tolerance:
            chosen = chosen | {i}
        elif p > tolerance:
            unresolved, mass = i, round(p, 14)
    return chosen, unresolved, mass


def ordered_draw(probs: np.ndarray, uniforms: np.ndarray) -> list[int]:
    """Return the samples that DepRound in the order given draws from these 2K uniforms, in O(n) by plain sums.

    Samples with probability 1 come last. The first K numbers (or as many as are not capped) are the coins of the
    straddlers, the next the places of the picks.
    """
    capped = np.flatnonzero(probs >= 1.0).tolist()
    alive = [i for i in range(len(probs)) if 0.0 < probs[i] < 1.0]
    ends = np.cumsum(probs[alive])
    size = round(float(ends[-1])) if alive else 0

    def at(target: float) -> int:
        return min(int(np.searchsorted(ends, target, side="right")), len(alive) - 1)

    chosen: list[int] = []
    for k in range(size):
        left, a, b = -1, 0.0, 0.0
        if k > 0:
            left = at(k)
            b = float(ends[left]) - k
            a = float(probs[alive[left]]) - b
        if k > 0 and left not in chosen and uniforms[k] * (1.0 - a) < b:
            chosen.append(left)
        else:
            chosen.append(at(k + b + uniforms[size + k] * (1.0 - b)))
    return [alive[i] for i in chosen] + capped
