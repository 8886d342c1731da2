"""The exact distribution of a fast draw: its outcomes enumerated, not sampled.

A draw is a function of numbers in [0, 1). As one of them grows, the sample it decides on only moves forward, so the
places where it changes can be found by bisection on the function itself, to the last bits of a float, without any
knowledge of how it is computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adamcb.selection import CombinatorialBandit, WeightedSelection
from adamcb.selection._depround import draw_ordered
from adamcb.selection._replacement import draw_with_replacement
from adamcb.selection._tree import build_tree, total_weight

LAST = 1.0 - 2.0**-53


def pieces(outcome: Callable[[float], int]) -> list[tuple[float, float, int]]:
    """Return (length, a point inside, value) of every piece of a step function on [0, 1) that never falls."""
    result, start = [], 0.0
    while True:
        value = outcome(start)
        if outcome(LAST) == value:
            return [*result, (1.0 - start, (start + 1.0) / 2, value)]
        low, high = start, LAST
        while high - low > 2.0**-50:
            middle = (low + high) / 2
            low, high = (middle, high) if outcome(middle) == value else (low, middle)
        result.append((high - start, (start + high) / 2, value))
        start = high


def fast_distribution(weights: np.ndarray, batch_size: int, exploration: float) -> dict[frozenset[int], float]:
    """Return the chance of every subset under the fast draw, in the order of the weights."""
    n = len(weights)
    tree = build_tree(weights)

    def run(uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positions, probs = np.empty(batch_size, dtype=np.int64), np.empty(batch_size)
        floor = batch_size * exploration / n
        draw_ordered(tree, n, batch_size, floor, uniforms, positions, probs, np.empty(batch_size))
        return positions, probs

    return distinct_distribution(run, batch_size)


def selection_distribution(selection: WeightedSelection | CombinatorialBandit) -> dict[frozenset[int], float]:
    """Return the chance of every batch that the selection can draw next, in the order that it has now."""
    assert selection._order is not None
    assert selection._position_of is not None
    order, position_of = selection._order[:], selection._position_of[:]

    def run(uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        selection._uniforms.rest, selection._drawn = uniforms.copy(), 0
        draw = selection.draw()
        return position_of[draw.indices], draw.probs

    found = distinct_distribution(run, selection.batch_size)
    return {frozenset(order[list(subset)].tolist()): chance for subset, chance in found.items()}


def distinct_distribution(
    run: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], batch_size: int
) -> dict[frozenset[int], float]:
    """Return the chance of every subset; `run` returns positions and probabilities for 2K numbers in [0, 1)."""
    size = int(np.count_nonzero(run(np.zeros(2 * batch_size))[1] < 1.0))  # the capped ones come last, without numbers
    result: dict[frozenset[int], float] = {}

    def follow(k: int, uniforms: np.ndarray, chance: float) -> None:
        if k == size:
            subset = frozenset(run(uniforms)[0].tolist())
            assert len(subset) == batch_size
            result[subset] = result.get(subset, 0.0) + chance
            return

        def place(coin: float, pick: float) -> int:
            uniforms[k], uniforms[size + k] = coin, pick
            return int(run(uniforms)[0][k])

        # A small coin takes the straddler: an earlier leaf than any that is picked. (At a pick of 0 the edge of the
        # straddler may be found by rounding, so the coin is looked at from the middle.)
        for coin_length, coin, _ in pieces(lambda coin: place(coin, 0.5)):
            for pick_length, pick, _ in pieces(lambda pick, coin=coin: place(coin, pick)):
                following = uniforms.copy()
                following[k], following[size + k] = coin, pick
                follow(k + 1, following, chance * coin_length * pick_length)

    follow(0, np.zeros(2 * batch_size), 1.0)
    return result


def replacement_distribution(weights: np.ndarray, exploration: float) -> dict[int, float]:
    """Return the chance of every sample in one draw with replacement."""
    tree = build_tree(weights)
    slope, base = (1.0 - exploration) / total_weight(tree), exploration / len(weights)

    def place(number: float) -> int:
        position = np.empty(1, dtype=np.int64)
        draw_with_replacement(tree, len(weights), slope, base, np.array([number]), position, np.empty(1), np.empty(1))
        return int(position[0])

    return {value: length for length, _, value in pieces(place)}
