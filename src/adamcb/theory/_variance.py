"""The second moment of a batch gradient, the probabilities that make it least, and what scale-free feedback does to it.

Letters: n samples with gradient norms aᵢ, K `batch_size`, γ `exploration`, w weights, q = w/Σw, inclusion probabilities
pᵢ = K((1 − γ)qᵢ + γ/n) with no sample capped, sᵢ = (aᵢ/pᵢ)², V = Σaᵢ²/pᵢ. docs/theory.md has the proofs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamcb import _checks

_BISECTIONS = 200  # more than float64 has bits: the bracket closes on two neighboring numbers


def second_moment(norms: Any, probs: Any) -> float:
    """Return V = Σaᵢ²/pᵢ: the part of n²·E‖g_t‖² that depends on which samples are likely, not on which ones meet.

    Example:
        >>> second_moment([3.0, 1.0], [0.75, 0.25])
        16.0
    """
    a = _checks.vector("norms", norms)
    p = _checks.vector("probs", probs, length=len(a))
    _check_positive("probs", p)
    return float((a**2 / p).sum())


def best_probs(norms: Any, batch_size: int, *, exploration: float = 0.0) -> np.ndarray:
    """Return the inclusion probabilities in [Kγ/n, 1] that sum to K and make V = Σaᵢ²/pᵢ least.

    They are c·aᵢ, raised to the floor Kγ/n and cut at 1, with the one c that makes the sum K.

    Args:
        norms: float[n], at or above 0, not all 0.
        batch_size: K, at most n.
        exploration: γ in [0, 1].

    Example:
        >>> best_probs([4.0, 2.0, 1.0, 1.0], 2)
        array([1.  , 0.5 , 0.25, 0.25])
        >>> best_probs([4.0, 2.0, 0.0, 0.0], 2, exploration=0.4)
        array([1. , 0.6, 0.2, 0.2])
    """
    a = _checks.vector("norms", norms)
    if not len(a):
        raise ValueError("`norms` must not be empty, got len(norms)=0.")
    k = _checks.integer("batch_size", batch_size, low=1, high=len(a))
    floor = k * _checks.real("exploration", exploration, low=0.0, high=1.0) / len(a)
    if not a.max() > 0.0:
        raise ValueError(f"`norms` must not all be 0, got {len(a)} zeros.")
    space = k - floor * np.count_nonzero(a == 0.0)
    if space > np.count_nonzero(a):  # those with a gradient are in every batch; the others share what is left
        return np.where(a > 0.0, 1.0, (k - np.count_nonzero(a)) / max(1, np.count_nonzero(a == 0.0)))
    a = np.maximum(a / a.max(), np.where(a > 0.0, 1e-290, 0.0))  # so that the largest c is finite
    low, high = 0.0, 1.0 / a[a > 0.0].min()
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.clip(middle * a, floor, 1.0).sum() < k else (low, middle)
    return np.clip(high * a, floor, 1.0)


def scale_free_step(
    weights: Any,
    norms: Any,
    batch: Any,
    batch_size: int,
    *,
    exploration: float = 0.0,
    rate: float = 0.3,
    level: str = "weights",
) -> np.ndarray:
    """Return the weights after scale-free feedback from one batch, with G known exactly instead of averaged.

    On the batch log wᵢ grows by clip(η(sᵢ/G − 1), −1, 1). If η ≤ 1/(e − 1), G = Σqᵢsᵢ, and no sample is capped before
    or after, V never grows, whichever batch it is (docs/theory.md).

    Args:
        weights: float[n], above 0.
        norms: float[n], at or above 0, not all 0.
        batch: The samples of the batch.
        batch_size: K, which sets p.
        exploration: γ in [0, 1).
        rate: η.
        level: What G is. "weights": Σqᵢsᵢ. "batch": Σpᵢsᵢ/K, the expectation of the mean of s over a batch. With γ = 0
            they are the same.

    Example:
        >>> before, after = np.ones(3), scale_free_step(np.ones(3), [2.0, 1.0, 1.0], [0], 1)
        >>> bool(after[0] > before[0]), after[1:]
        (True, array([1., 1.]))
    """
    w = _checks.vector("weights", weights)
    a = _checks.vector("norms", norms, length=len(w))
    _checks.one_of("level", level, ("weights", "batch"))
    _check_positive("weights", w)
    if not a.max() > 0.0:
        raise ValueError(f"`norms` must not all be 0, got {len(a)} zeros.")
    chosen = _checks.indices("batch", batch, below=len(w), distinct=True)
    batch_size = _checks.integer("batch_size", batch_size, low=1, high=len(w))
    exploration = _checks.real("exploration", exploration, low=0.0, high=1.0, high_open=True)
    rate = _checks.magnitude("rate", rate)
    q = w / w.sum()
    p = batch_size * ((1.0 - exploration) * q + exploration / len(w))
    s = (a / p) ** 2
    mean = float(((q if level == "weights" else p / batch_size) * s).sum())
    factors = np.ones(len(w))
    factors[chosen] = np.exp(np.clip(rate * (s[chosen] / mean - 1.0), -1.0, 1.0))
    return w * factors


def _check_positive(name: str, values: np.ndarray) -> None:
    if not (len(values) and values.min() > 0.0):
        got = f"{name}[{values.argmin()}]={values.min()}" if len(values) else f"len({name})=0"
        raise ValueError(f"`{name}` must be above 0, got {got}.")


def descent_constant(rate: float) -> float:
    """Return κ = η(1 − 1/e)(1 − (e − 1)η): E log(V after ÷ V before) ≤ −κ·min(p)·(1 − V*/V), for γ = 0.

    Example:
        >>> round(descent_constant(0.3), 4)
        0.0919
    """
    eta = _checks.real("rate", rate, low=0.0, high=1.0 / (math.e - 1.0))
    return eta * (1.0 - 1.0 / math.e) * (1.0 - (math.e - 1.0) * eta)
