"""The cap that keeps every inclusion probability at or below 1 (Algorithm 2, lines 2–11), without sorting."""

from __future__ import annotations

import numpy as np

from adamcb._jit import jit
from adamcb.selection._tree import find_largest, largest_weight, take_out, total_weight


@jit
def cap(tree, num_samples, batch_size, min_prob, capped):
    """Take out of the draw every sample whose inclusion probability would reach 1, the largest weight first.

    With m samples capped, the others share K − m: pᵢ = slope·wᵢ + base, where base = `min_prob` = Kγ/n is what
    exploration guarantees to every sample. Capping one sample raises the probabilities of the others, so the loop goes
    on until the largest of them stays below 1. That is Algorithm 2's τ: a weight is capped if and only if it is ≥ τ.

    Writes the positions of the capped samples into `capped` (int64[K]) and returns (m, slope, base).
    """
    count = 0
    while True:
        left = num_samples - count
        spare = batch_size - count - min_prob * left
        total = total_weight(tree)
        if spare > 0.0 and total <= 0.0:
            # Only weights of 0 are left: share equally, which is the limit of equal weights that go to 0.
            return count, 0.0, (batch_size - count) / left
        slope = spare / total if spare > 0.0 else 0.0
        if slope * largest_weight(tree) + min_prob < 1.0:
            return count, slope, min_prob
        position = find_largest(tree)
        take_out(tree, position)
        capped[count] = position
        count += 1


@jit
def probs_at(tree, num_samples, batch_size, min_prob, positions, probs):
    """Write the inclusion probabilities of the leaves at `positions` into `probs`; leave the tree unchanged.

    Returns the slope: how fast probabilities rise with weights.
    """
    capped = np.empty(batch_size, dtype=np.int64)
    count, slope, base = cap(tree, num_samples, batch_size, min_prob, capped)
    for j in range(len(positions)):
        weight = tree.leaves[positions[j]]
        probs[j] = min(slope * weight + base, 1.0) if weight >= 0.0 else 1.0
    for position in capped[:count]:
        take_out(tree, position)
    return slope
