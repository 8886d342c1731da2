"""A tree of partial sums over n weights: search by cumulative mass, change of many weights, largest weight.

The leaves are the weights, in the order of the draw. Every inner node stands for 8 nodes below it (one cache line of
weights) and holds their sum and their largest weight. Inner nodes are always recomputed from their children, never
adjusted by a difference, so no rounding error builds up: after any number of updates the tree equals a newly built
one, bit for bit.

A sample of weight w has mass `slope * w + base`. The mass of a node follows from its sum and from how many samples it
stands for, so the same tree serves every exploration rate and every cap. A negative leaf is out of the draw: padding at
the end, or a capped sample, whose weight is negated until the draw is over. The sum of an inner node is negated too
while a leaf under it is out of the draw. Only then does a search look up its count; otherwise it reads one array per
level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adamcb._jit import jit
from adamcb.selection._shuffle import Shuffle

FANOUT = 8
_SHIFT = 3  # FANOUT = 2**_SHIFT
_SUM, _LARGEST = 0, 1

# A positive weight never falls below this, so that it can rise again. A tree whose largest weight leaves the range is
# rescaled by a power of two, which changes no ratio between weights.
SMALLEST = 2.0**-1000
_LOW, _HIGH = 2.0**-100, 2.0**100


class Tree(NamedTuple):
    """The arrays of a tree. Level 0 is `leaves`; level v ≥ 1 starts at `offsets[v]` in `nodes` and `counts`."""

    leaves: np.ndarray  # float64[n, padded]
    nodes: np.ndarray  # float64[nodes, 2]: sum (negated where `counts` is needed) and largest weight
    counts: np.ndarray  # int64[nodes]: leaves in the draw; valid only where some leaf is out of it
    offsets: np.ndarray  # int64[levels + 1]; the last is that of the root


def build_tree(weights: np.ndarray, order: np.ndarray | Shuffle | None = None) -> Tree:
    """Return the tree over `weights` (float64[n], see `in_range`), in the order given or as they come. O(n)."""
    leaves = np.full(_padded(len(weights)), -1.0)
    if order is None or weights.strides == (0,):  # one weight for all is the same in every order
        leaves[: len(weights)] = weights
    else:
        gather(weights, order, leaves)
    return tree_over(leaves)


def tree_over(leaves: np.ndarray) -> Tree:
    """Return the tree that has these leaves: weights in the order of the draw, and padding. O(n)."""
    sizes = [len(leaves)]
    while sizes[-1] > FANOUT:
        sizes.append(_padded(sizes[-1] // FANOUT))
    sizes.append(1)
    tree = Tree(
        leaves=leaves,
        nodes=np.zeros((sum(sizes[1:]), 2)),
        counts=np.zeros(sum(sizes[1:]), dtype=np.int64),
        offsets=np.cumsum([0, 0, *sizes[1:-1]], dtype=np.int64),
    )
    rebuild(tree)
    return tree


def in_range(weights: np.ndarray) -> np.ndarray:
    """Return `weights` (finite, at or above 0) brought into the range that a tree works in.

    Weights whose largest is far from 1 are scaled by a power of two; positive ones are kept above `SMALLEST`.
    """
    return scaled(weights, range_exponent(weights))


def range_exponent(weights: np.ndarray) -> int:
    """Return the power of two that brings the largest of `weights` into range; 0 if it is."""
    largest = weights.max()
    return 0 if largest <= 0.0 or _LOW <= largest <= _HIGH else 1 - int(np.frexp(largest)[1])


def scaled(weights: np.ndarray, exponent: int) -> np.ndarray:
    """Return `weights` times 2**exponent, positive ones kept above `SMALLEST`."""
    if exponent:
        weights = np.ldexp(weights, exponent)
    return np.where(weights > 0.0, np.maximum(weights, SMALLEST), 0.0)


def gather(values: np.ndarray, order: np.ndarray | Shuffle, out: np.ndarray) -> None:
    """Write `values[order]` into `out`. NumPy would make 64-bit copies of the order on the way, 8 bytes a sample."""
    if isinstance(order, Shuffle):
        order.gather(values, out)
    else:
        _gather(values, order, out)


@jit
def _gather(values, order, out):
    for position in range(len(order)):
        out[position] = values[order[position]]


def _padded(size: int) -> int:
    return -(-size // FANOUT) * FANOUT


@jit
def rebuild(tree):
    """Recompute every inner node. O(n)."""
    size = len(tree.leaves)
    for level in range(1, len(tree.offsets)):
        size //= FANOUT
        for node in range(size):
            _recompute(tree, level, node)
        size = -(-size // FANOUT) * FANOUT


@jit
def _recompute(tree, level, node):
    total, largest, count = 0.0, -1.0, 0
    first = tree.offsets[level - 1] + node * FANOUT
    full = 1 << (_SHIFT * (level - 1))
    for child in range(first, first + FANOUT):
        if level == 1:
            weight = tree.leaves[child]
            if weight >= 0.0:
                total += weight
                largest = max(largest, weight)
                count += 1
        else:
            part = tree.nodes[child, _SUM]
            total += abs(part)
            largest = max(largest, tree.nodes[child, _LARGEST])
            count += full if part > 0.0 else tree.counts[child]
    here = tree.offsets[level] + node
    tree.nodes[here, _LARGEST] = largest
    if count == FANOUT * full and total > 0.0:
        tree.nodes[here, _SUM] = total
    else:
        tree.nodes[here, _SUM] = -total
        tree.counts[here] = count


@jit
def refresh(tree, positions):
    """Recompute the nodes above the leaves at `positions` (int64), each node once if they ascend."""
    nodes = positions.copy()
    count = len(nodes)
    for level in range(1, len(tree.offsets)):
        kept = 0
        for i in range(count):
            node = nodes[i] >> _SHIFT
            if kept == 0 or nodes[kept - 1] != node:
                nodes[kept] = node
                kept += 1
                _recompute(tree, level, node)
        count = kept


@jit
def total_weight(tree):
    """Return the sum of the weights that are in the draw."""
    return abs(tree.nodes[-1, _SUM])


@jit
def largest_weight(tree):
    """Return the largest weight that is in the draw, below 0 if there is none."""
    return tree.nodes[-1, _LARGEST]


@jit
def find_largest(tree):
    """Return the position of the largest weight that is in the draw, the first of equals."""
    largest = largest_weight(tree)
    node = 0
    for level in range(len(tree.offsets) - 2, 0, -1):
        node *= FANOUT
        while tree.nodes[tree.offsets[level] + node, _LARGEST] != largest:
            node += 1
    node *= FANOUT
    while tree.leaves[node] != largest:
        node += 1
    return node


@jit
def take_out(tree, position):
    """Take one leaf of positive weight out of the draw; a second call puts it back."""
    tree.leaves[position] = -tree.leaves[position]
    node = position
    for level in range(1, len(tree.offsets)):
        node >>= _SHIFT
        _recompute(tree, level, node)


@jit
def leaf_mass(tree, slope, base, position):
    """Return the mass of one leaf: 0 if it is out of the draw."""
    weight = tree.leaves[position]
    return slope * weight + base if weight >= 0.0 else 0.0


@jit
def search(tree, slope, base, targets, positions, rests):
    """Find, for every target, the leaf in which the cumulative mass passes it.

    Writes the leaf into `positions` and how far the target lies inside it into `rests`. A leaf without mass is never
    found; a target at or beyond the total mass finds the last leaf that has some. A larger target never finds an
    earlier leaf. All targets descend together, level by level, so that their memory accesses overlap.
    """
    for i in range(len(targets)):
        positions[i] = 0
        rests[i] = targets[i]
    for level in range(len(tree.offsets) - 2, -1, -1):
        offset = tree.offsets[level]
        full = base * (1 << (_SHIFT * level))
        for i in range(len(targets)):
            first = offset + positions[i] * FANOUT
            rest, found, mass, inside = rests[i], first, 0.0, False
            for child in range(first, first + FANOUT):
                if level == 0:
                    here = leaf_mass(tree, slope, base, child)
                else:
                    part = tree.nodes[child, _SUM]
                    here = slope * part + full if part > 0.0 else base * tree.counts[child] - slope * part
                if here > 0.0:
                    found, mass = child, here
                    if rest < here:
                        inside = True
                        break
                    rest -= here
            positions[i] = found - offset
            rests[i] = rest if inside else mass


@jit
def multiply(tree, positions, factors, least):
    """Multiply the weights at `positions` (int64, repeats allowed), and bring the tree up to date.

    Weights of 0 stay 0; others end at or above `least`.
    """
    for i in range(len(positions)):
        weight = tree.leaves[positions[i]]
        if weight > 0.0:
            tree.leaves[positions[i]] = max(weight * factors[i], least)
    refresh(tree, positions)
    if not _LOW <= largest_weight(tree) <= _HIGH:
        rescale(tree)


@jit
def assign(tree, positions, weights, positive, least_positive):
    """Set the weights at `positions` (int64; of repeats the last counts) and bring the tree up to date.

    Return how many weights are above 0 now, given how many were. If they are fewer than `least_positive`, change
    nothing.
    """
    before = np.empty(len(positions))
    for i in range(len(positions)):
        before[i] = tree.leaves[positions[i]]
        tree.leaves[positions[i]] = max(weights[i], SMALLEST) if weights[i] > 0.0 else 0.0
        positive += (weights[i] > 0.0) - (before[i] > 0.0)
    if positive < least_positive:
        for i in range(len(positions) - 1, -1, -1):
            tree.leaves[positions[i]] = before[i]
        return positive
    refresh(tree, positions)
    if not _LOW <= largest_weight(tree) <= _HIGH:
        rescale(tree)
    return positive


@jit
def rescale(tree):
    """Scale all weights by one power of two, so that the largest lies in [1, 2). O(n), and rare."""
    largest = largest_weight(tree)
    if largest <= 0.0:
        return
    factor = 2.0 ** -np.floor(np.log2(largest))
    for position in range(len(tree.leaves)):
        if tree.leaves[position] > 0.0:
            tree.leaves[position] = max(tree.leaves[position] * factor, SMALLEST)
    rebuild(tree)
