"""The projection of the original AdamBS: onto the distributions whose entries are all at or above p_min."""

from __future__ import annotations

import numpy as np

from adamcb._jit import jit
from adamcb.selection._tree import refresh, total_weight


@jit
def project_to_floor(tree, positions, min_prob):
    """Project w/Σw in KL divergence onto {q : Σq = 1, q ≥ p_min}, after the weights at `positions` fell.

    The projection is qᵢ = max(p_min, c·wᵢ) with the c that makes Σq = 1. Weights only ever fall, and every sample was
    at or above the floor before. So c ≥ 1, and only the samples at `positions` (int64, ascending, distinct) can be
    below it now. Those that are get w = p_min·W, where W is the new sum: O(K log n) instead of O(n).
    """
    for position in positions:
        tree.leaves[position] = -tree.leaves[position]
    refresh(tree, positions)
    others = total_weight(tree)
    raised = np.zeros(len(positions), dtype=np.bool_)
    level, changed = 0.0, True
    while changed:
        free = others
        for i in range(len(positions)):
            if not raised[i]:
                free -= tree.leaves[positions[i]]
        level = min_prob * free / (1.0 - raised.sum() * min_prob)
        changed = False
        for i in range(len(positions)):
            # The last free sample gets what the floors leave, whatever rounding says.
            if not raised[i] and -tree.leaves[positions[i]] < min(level, free):
                raised[i] = changed = True
    for i in range(len(positions)):
        tree.leaves[positions[i]] = level if raised[i] else -tree.leaves[positions[i]]
    refresh(tree, positions)
