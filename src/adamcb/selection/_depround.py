"""DepRound: K distinct samples, each with exactly its inclusion probability.

`depround` is the textbook form, Algorithm 6 of the paper. It may pair samples in any order; here the one unresolved
sample is always paired with the next. `draw_ordered` gives the same distribution over subsets in O(K log n) on a tree:
cut the cumulative sum of the inclusion probabilities at the integers, and each unit interval gives one sample
(Chauvet 2012, "On a characterization of ordered pivotal sampling", Bernoulli 18(4)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb._jit import jit
from adamcb.selection._capping import cap
from adamcb.selection._tree import leaf_mass, search, take_out


def depround(inclusion_probs: Any, *, generator: torch.Generator | None = None) -> np.ndarray:
    """Return K distinct indices in which index i occurs with probability `inclusion_probs[i]`.

    Algorithm 6 as printed, O(n). Two samples i, j with probabilities strictly between 0 and 1 are paired; with
    α = min(1 − pᵢ, pⱼ) and β = min(pᵢ, 1 − pⱼ), (pᵢ, pⱼ) becomes (pᵢ + α, pⱼ − α) with probability β/(α + β) and
    (pᵢ − β, pⱼ + β) otherwise, which resolves at least one of the two and keeps both expectations.

    Args:
        inclusion_probs: n numbers in [0, 1] whose sum K is an integer (to 1e-6).
        generator: Where the random numbers come from; torch's global generator if None.

    Returns:
        int64[K], ascending.

    Raises:
        ValueError: If a probability lies outside [0, 1] or the sum is not an integer.

    Example:
        >>> depround([1.0, 0.0, 0.5, 0.5], generator=torch.Generator().manual_seed(0))
        array([0, 3])
    """
    probs = _checks.vector("inclusion_probs", inclusion_probs).copy()
    _checks.generator(generator)
    if probs.size and probs.max() > 1.0:
        first = int(probs.argmax())
        raise ValueError(f"`inclusion_probs` must be at most 1, got inclusion_probs[{first}]={probs[first]}.")
    total = probs.sum()
    if abs(total - round(total)) > 1e-6:
        raise ValueError(f"`inclusion_probs` must sum to an integer, got sum(inclusion_probs)={total}.")
    coins = torch.rand(len(probs), dtype=torch.float64, generator=generator).numpy()
    unresolved = None
    for j in np.flatnonzero((probs > 0.0) & (probs < 1.0)):
        if unresolved is None:
            unresolved = j
            continue
        i = unresolved
        alpha, beta = min(1.0 - probs[i], probs[j]), min(probs[i], 1.0 - probs[j])
        if coins[j] * (alpha + beta) < beta:
            probs[i], probs[j] = probs[i] + alpha, probs[j] - alpha
        else:
            probs[i], probs[j] = probs[i] - beta, probs[j] + beta
        unresolved = next((k for k in (i, j) if 0.0 < probs[k] < 1.0), None)
    # The probability of the last sample is 0 or 1, up to the rounding error of the sum.
    return np.flatnonzero(probs > 0.5)


@jit
def draw_ordered(tree, num_samples, batch_size, min_prob, uniforms, positions, probs, loss_weights):
    """Draw K distinct samples with the inclusion probabilities of Algorithm 2, by DepRound in the tree's order.

    `uniforms` are 2K numbers in [0, 1). Writes three arrays of length K: which leaves were drawn, and probabilities and
    loss weights of a `Draw`. The capped samples come last, with probability exactly 1. Leaves the tree unchanged.
    """
    capped = np.empty(batch_size, dtype=np.int64)
    num_capped, slope, base = cap(tree, num_samples, batch_size, min_prob, capped)
    rest = batch_size - num_capped
    if rest > 0:
        _draw_uncapped(tree, slope, base, uniforms[:rest], uniforms[rest : 2 * rest], positions[:rest])
    for i in range(rest):
        probs[i] = min(leaf_mass(tree, slope, base, positions[i]), 1.0)
    for i in range(num_capped):
        take_out(tree, capped[i])
        positions[rest + i] = capped[i]
        probs[rest + i] = 1.0
    for i in range(batch_size):
        loss_weights[i] = 1.0 / (num_samples * probs[i])


@jit
def _draw_uncapped(tree, slope, base, coins, picks, positions):
    """Draw one leaf from each unit interval of cumulative mass. Letters as in `choose`."""
    size = len(positions)
    straddlers, before, after = cut_at_integers(tree, slope, base, size)
    targets = np.empty(size)
    for k in range(size):
        targets[k] = k + after[k] + picks[k] * (1.0 - after[k])
    picked = np.empty(size, dtype=np.int64)
    search(tree, slope, base, targets, picked, np.empty(size))
    for k in range(size):
        carried = k > 0 and positions[k - 1] == straddlers[k]
        leaf = choose(straddlers[k], before[k], after[k], carried, coins[k], picked[k])
        insert_distinct(tree, slope, base, positions, k, leaf)


@jit
def cut_at_integers(tree, slope, base, size):
    """Return the leaf that straddles each cut 0 … `size`, and its mass before and after that cut.

    The first cut and the last have no straddler: leaf −1, no mass.
    """
    straddlers = np.empty(size + 1, dtype=np.int64)
    straddlers[0] = straddlers[size] = -1
    before, after, cuts = np.zeros(size + 1), np.zeros(size + 1), np.empty(size - 1)
    for k in range(1, size):
        cuts[k - 1] = k
    search(tree, slope, base, cuts, straddlers[1:size], before[1:size])
    for k in range(1, size):
        after[k] = max(leaf_mass(tree, slope, base, straddlers[k]) - before[k], 0.0)
    return straddlers, before, after


@jit
def choose(straddler, before, after, carried, coin, picked):
    """Return the leaf of one unit interval.

    The straddler of the interval's left end has mass a = `before` in the interval before and b = `after` in this one.
    If it was chosen there (`carried`), this interval takes `picked`, drawn in proportion among its other leaves. If
    not, it takes the straddler with probability b/(1 − a), so that its chances add up to a + (1 − a)·b/(1 − a) = p.
    """
    if straddler >= 0 and not carried and coin * (1.0 - before) < after:
        return straddler
    return picked


@jit
def insert_distinct(tree, slope, base, positions, count, leaf):
    """Append `leaf` to the first `count` positions, which ascend; take the nearest free leaf if rounding repeats one.

    In exact arithmetic leaves always ascend. With rounding, a target at the edge of a leaf may find its neighbor. Then
    the next leaf with mass is taken or, if there is none, the last free one before.
    """
    if count == 0 or leaf > positions[count - 1]:
        positions[count] = leaf
        return
    for free in range(positions[count - 1] + 1, len(tree.leaves)):
        if leaf_mass(tree, slope, base, free) > 0.0:
            positions[count] = free
            return
    at, free = count, positions[count - 1]
    while (at > 0 and positions[at - 1] == free) or leaf_mass(tree, slope, base, free) <= 0.0:
        if at > 0 and positions[at - 1] == free:
            positions[at] = free
            at -= 1
        free -= 1
    positions[at] = free
