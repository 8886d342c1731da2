"""A shuffled order of very many samples that is computed where it is needed, and not kept.

A Feistel network permutes the numbers of b bits: it cuts a number into two halves, and changes one half by a mix of the
other, in turns. Each round can be undone, so the whole is a permutation, whatever the mix is. With n samples, b is the
smallest that holds them all, and a result at or above n is permuted again until it falls below (Black and Rogaway
2002, "Ciphers with arbitrary finite domains"). That takes less than two turns on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb._jit import jit

_ROUNDS = 8
_GOLDEN, _FIRST_MIX, _SECOND_MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1
_NOTHING = np.empty(0)


class Shuffle:
    """The random order of n samples that `seed` stands for: `shuffle[position]` is a sample, for arrays and slices.

    It takes no memory. Among the n! orders there is one for every seed, so at most 2⁶² can occur, as with any generator
    that has such a seed.

    Args:
        num_samples: n, at least 2.
        seed: Stands for the order.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        bits = (num_samples - 1).bit_length()
        self.num_samples = num_samples
        self._network = _keys(seed), np.uint64(bits // 2), np.uint64(bits - bits // 2), num_samples, False

    def inverse(self) -> Shuffle:
        """Return this order with sides changed: `inverse[sample]` is its position. `move` moves both."""
        turned = Shuffle(self.num_samples, 0)
        turned._network = *self._network[:-1], not self._network[-1]
        return turned

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, places: Any) -> np.ndarray:
        """Return int64 for a slice, or for an array of integers in [0, n)."""
        if isinstance(places, slice):
            places = np.arange(*places.indices(self.num_samples))
        _look_up(self._network, places, result := np.empty(len(places), dtype=np.int64))
        return result

    def gather(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write `values[self[:]]` into `out`."""
        _gather(self._network, values, out)

    def move(self, seed: int, values: np.ndarray, by_sample: np.ndarray = _NOTHING) -> None:
        """Become the order that `seed` stands for, and bring `values` from the old order into it, in place.

        One compiled call does both, so an interrupt cannot come between. It takes no memory.

        Args:
            seed: Stands for the new order.
            values: float64[n], at or above 0, in this order.
            by_sample: float64[n], in the order of the samples, to take the place of `values`. Empty: they stay.
        """
        _move(self._network, _keys(seed), values, by_sample)


def _keys(seed: int) -> np.ndarray:
    return np.array([_mixed(seed + number * _GOLDEN) for number in range(1, _ROUNDS + 1)], dtype=np.uint64)


def _mixed(number: int) -> int:
    """Return the number that SplitMix64 gives at this place of its sequence."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * _FIRST_MIX) & _MASK
    number = ((number ^ (number >> 27)) * _SECOND_MIX) & _MASK
    return number ^ (number >> 31)


@jit
def _mix(bits):
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST_MIX)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND_MIX)
    return bits ^ (bits >> np.uint64(31))


@jit
def _permuted(network, place):
    """Return where the network sends one place."""
    keys, low_bits, high_bits, n, inverse = network
    one = np.uint64(1)
    low_mask, high_mask = (one << low_bits) - one, (one << high_bits) - one
    low, high = np.uint64(place) & low_mask, np.uint64(place) >> low_bits
    while True:
        if inverse:
            for turn in range(len(keys) - 1, 0, -2):
                high ^= _mix(low + keys[turn]) & high_mask
                low ^= _mix(high + keys[turn - 1]) & low_mask
        else:
            for turn in range(0, len(keys), 2):
                low ^= _mix(high + keys[turn]) & low_mask
                high ^= _mix(low + keys[turn + 1]) & high_mask
        found = np.int64((high << low_bits) | low)
        if found < n:
            return found


@jit
def _look_up(network, places, out):
    for j in range(len(places)):
        out[j] = _permuted(network, places[j])


@jit
def _gather(network, values, out):
    for place in range(network[3]):
        out[place] = values[_permuted(network, place)]


@jit
def _move(network, new_keys, values, by_sample):
    """See `Shuffle.move`. Follows the cycles of the permutation; a value that has found its place is negated."""
    keys, low_bits, high_bits, n, _ = network
    old, new = (keys, low_bits, high_bits, n, True), (new_keys, low_bits, high_bits, n, False)
    replaced = len(by_sample) > 0
    for sample in range(len(by_sample)):
        values[sample] = by_sample[sample] + 0.0  # a zero without its sign
    for first in range(n):
        if np.signbit(values[first]):
            values[first] = -values[first]
            continue
        held, place, sign = values[first], first, 1.0
        while True:
            source = _permuted(new, place)
            if not replaced:
                source = _permuted(old, source)
            if source == first:
                break
            values[place] = sign * values[source]
            place, sign = source, -1.0
        values[place] = sign * held
    keys[:] = new_keys
