"""The axis that the queue moves along: units, places, and the batch of the samples that are due next.

Each sample has a rate r. The axis is cut into units of that sample, each 1/r long, one after the other, and in each
unit the sample is due at one uniformly random place. A sample has one event in the heap at any time: while it waits for
its place, event i at that place; once visited, event −1 − i at the end of its unit. There its next unit begins, and
only there are the rate and the place of that unit decided. Feedback may come at any time, or never. It changes the
weight, which counts when the next unit begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adamcb._jit import jit
from adamcb.selection._heap import Heap, build_heap, insert, remove_first, replace_first

# Places in `Axis.sums`.
POSITION, RATES, WEIGHTS, RATES_LOST = 0, 1, 2, 3

# The mean weight is kept in this range.
_LOW, _HIGH = 2.0**-100, 2.0**100

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MIX = np.uint64(0x94D049BB133111EB)


class Axis(NamedTuple):
    """The arrays of n samples, and a few sums."""

    heap: Heap
    begins: np.ndarray  # float64[n], where the sample's unit begins
    rates: np.ndarray  # float64[n], the rate of that unit
    weights: np.ndarray  # float64[n], from which the rate of the next unit follows
    sums: np.ndarray  # float64[4]: position, sum of rates, sum of weights, rounding error of the sum of rates
    stream: np.ndarray  # uint64[2]: seed, and how many numbers were taken from it


class Bounds(NamedTuple):
    """The limits of a rate: `low` ≤ r ≤ `share`·Σr, but not above n·`share`. With (1, 0) all rates are 1."""

    low: float
    share: float


@jit
def uniform(stream):
    """Return the next number in [0, 1) of a stream (SplitMix64: Steele, Lea and Flood 2014)."""
    stream[1] += np.uint64(1)
    bits = stream[0] + stream[1] * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST_MIX
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND_MIX
    bits = bits ^ (bits >> np.uint64(31))
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


def new_axis(num_samples: int, seed: int) -> Axis:
    """Return an axis at 0, where the first unit of every sample begins, all with rate 1. O(n)."""
    axis = Axis(
        heap=new_heap(num_samples),
        begins=np.zeros(num_samples),
        rates=np.ones(num_samples),
        weights=np.ones(num_samples),
        sums=np.array([0.0, num_samples, num_samples, 0.0]),
        stream=np.array([seed, 0], dtype=np.uint64),
    )
    _fill_places(axis)
    build_heap(axis.heap)
    return axis


def new_heap(num_samples: int) -> Heap:
    """Return a heap of one event per sample, whose keys are to be filled."""
    dtype = np.int32 if num_samples < 2**31 else np.int64
    return Heap(np.empty(num_samples), np.arange(num_samples, dtype=dtype), np.array([num_samples]))


@jit
def _fill_places(axis):
    for i in range(len(axis.rates)):
        axis.heap.keys[i] = uniform(axis.stream)


@jit
def rate_of(weights, sums, bounds, i):
    """Return the rate by a sample's weight now: n·v/Σv, within bounds."""
    n = len(weights)
    return min(max(n * weights[i] / sums[WEIGHTS], bounds.low), highest_rate(sums, bounds, n))


@jit
def highest_rate(sums, bounds, n):
    """Return the highest rate that a unit may begin with now."""
    return max(bounds.share * min(sums[RATES], n), bounds.low)


@jit
def draw_due(axis, bounds, indices, probs, loss_weights):
    """Follow the axis until k distinct samples were due, k = len(indices), and write them out.

    A sample that is due for the second time waits for the next batch.
    """
    heap, sums, n, k = axis.heap, axis.sums, len(axis.rates), len(indices)
    start = sums[POSITION]
    waiting = heap.keys[0] < start  # samples that waited may be due again in units that began before this batch
    held_keys, held, num_held, count = np.empty(k), np.empty(k, dtype=np.int64), 0, 0
    chosen = new_set(k)
    ended, ended_at = 0, -1.0
    while count < k:
        key, event = heap.keys[0], heap.events[0]
        sums[POSITION] = max(sums[POSITION], key)
        if event < 0:
            ended, ended_at = ended + 1 if key == ended_at else 0, key
            if ended > max(n >> 6, 8) and num_held == 0:
                _begin_units_at(axis, bounds, key)
            else:
                replace_first(heap, _begin_unit(axis, bounds, -1 - event, key), -1 - event)
        elif (waiting or axis.begins[event] >= start) and chosen[slot_of(chosen, event)] == event:
            held_keys[num_held], held[num_held] = key, event
            num_held += 1
            remove_first(heap)
        else:
            rate = axis.rates[event]
            chosen[slot_of(chosen, event)] = event
            indices[count], probs[count] = event, k * rate / sums[RATES]
            loss_weights[count] = 1.0 / (n * probs[count])
            count += 1
            replace_first(heap, axis.begins[event] + 1.0 / rate, -1 - event)
    for j in range(num_held):
        insert(heap, held_keys[j], held[j])
    if np.floor(sums[POSITION]) > np.floor(start):  # about once in n visits
        sums[RATES] = sums[RATES_LOST] = 0.0
        for rate in axis.rates:
            _add_rate(sums, rate)
        _renew_weights(axis.weights, sums)


@jit
def _renew_weights(weights, sums):
    """Sum the weights anew if rounding shows: when weights shrink, old errors do not.

    Errors in the last digits are kept, so that the sum of most runs follows from their steps alone.
    """
    total = 0.0
    for weight in weights:
        total += weight
    if not abs(total - sums[WEIGHTS]) <= 1e-12 * total:
        sums[WEIGHTS] = total


@jit
def _add_rate(sums, change):
    """Add to the sum of rates, and carry what rounding takes from it to the next call (Kahan 1965).

    Many changes are alike, so their rounding errors would have one sign and add up.
    """
    change += sums[RATES_LOST]
    total = sums[RATES] + change
    sums[RATES_LOST] = change - (total - sums[RATES])
    sums[RATES] = total


@jit
def _begin_unit(axis, bounds, i, begin):
    """Begin the next unit of a sample: fix its rate, draw its place, and return the place."""
    rate = rate_of(axis.weights, axis.sums, bounds, i)
    _add_rate(axis.sums, rate - axis.rates[i])
    axis.begins[i], axis.rates[i] = begin, rate
    return begin + uniform(axis.stream) / rate


@jit
def _begin_units_at(axis, bounds, begin):
    """Begin the next unit of all samples whose unit ends here, in the order in which they would leave the heap.

    As long as rates are equal, that is all n of them, once an epoch. This takes O(n) instead of O(n log n), and no
    memory.
    """
    keys, events = axis.heap.keys, axis.heap.events
    sort_by_sample(axis.heap)
    for i in range(len(keys) - 1, -1, -1):
        if events[i] < 0 and keys[i] == begin:
            keys[i], events[i] = _begin_unit(axis, bounds, i, begin), i
    build_heap(axis.heap)


@jit
def sample_of(event):
    """Return the sample that an event is of."""
    return event if event >= 0 else -1 - event


@jit
def sort_by_sample(heap):
    """Bring the event of sample i into slot i, for all n of them, in place. What is left is no heap."""
    keys, events = heap.keys, heap.events
    for slot in range(len(keys)):
        while sample_of(events[slot]) != slot:
            i = sample_of(events[slot])
            keys[slot], keys[i] = keys[i], keys[slot]
            events[slot], events[i] = events[i], events[slot]


@jit
def new_set(size):
    """Return an empty set of samples: a table of at least twice as many slots, the number of a sample or −1 in each."""
    slots = 2
    while slots < 2 * size:
        slots *= 2
    return np.full(slots, -1)


@jit
def slot_of(chosen, i):
    """Return where in a set sample i is, or where to put it if it is not in there."""
    last = len(chosen) - 1
    slot = np.int64((np.uint64(i) * _GOLDEN) >> np.uint64(32)) & last
    while chosen[slot] != i and chosen[slot] >= 0:
        slot = (slot + 1) & last
    return slot


@jit
def write_events(axis, keys, visited):
    """Write every sample's event: where it is on the axis, and whether it is the end of a unit."""
    for slot in range(len(keys)):
        event = axis.heap.events[slot]
        i = sample_of(event)
        keys[i], visited[i] = axis.heap.keys[slot], event < 0


@jit
def read_events(axis, keys, visited):
    """Take over what `write_events` wrote."""
    for i in range(len(keys)):
        axis.heap.keys[i], axis.heap.events[i] = keys[i], -1 - i if visited[i] else i
    axis.heap.size[0] = len(keys)
    build_heap(axis.heap)


@jit
def fault_of(weights, rates, begins, places, visited, sums, bounds):
    """Return what cannot be in a saved axis, as a number of `FAULTS`; 0: nothing.

    An event lies within its unit, and at its end if the sample was visited. Sums are rounded, hence their tolerance.
    """
    highest, position = max(bounds.share * len(rates), bounds.low), sums[POSITION]
    all_rates = all_weights = 0.0
    for i in range(len(rates)):
        if not bounds.low <= rates[i] <= highest:
            return 1
        end = begins[i] + 1.0 / rates[i]
        if begins[i] > position:
            return 2
        if not begins[i] <= places[i] <= end or (visited[i] and places[i] != end):
            return 3
        all_rates += rates[i]
        all_weights += weights[i]
    if not abs(sums[RATES] - all_rates) <= 1e-6 * all_rates or not abs(sums[RATES_LOST]) <= 1e-6 * all_rates:
        return 4
    return 0 if abs(sums[WEIGHTS] - all_weights) <= 1e-2 * all_weights else 5


FAULTS = {
    1: ("rates", "lie between the lowest and the highest rate"),
    2: ("begins", "lie at or before the position, where units have begun"),
    3: ("events", "lie within the unit of their sample, and at its end where the sample was visited"),
    4: ("sums", "hold the sum of state['rates'], and what rounding took from it"),
    5: ("sums", "hold the sum of state['weights']"),
}


# What follows is called with a few arrays, not with the whole axis: passing that takes longer than the work itself.


@jit
def probs_by_weight(weights, sums, bounds, indices, batch_size):
    """Return the probabilities that the weights give these samples now in a batch of K, and the limits of such.

    They are Kr/n, not Kr/Σr, so that they change with the weights alone.
    """
    unit = batch_size / len(weights)
    probs = np.empty(len(indices))
    for j in range(len(indices)):
        probs[j] = unit * rate_of(weights, sums, bounds, indices[j])
    return probs, unit * bounds.low, unit * highest_rate(sums, bounds, len(weights))


@jit
def multiply_weights(weights, sums, bounds, indices, factors):
    """Multiply the weights of a batch. They stay where they make a difference: between the bounds of a rate.

    So a sample that was quiet for long can be noticed at its next visit, and no few samples can have all the weight.
    """
    n, total = len(weights), sums[WEIGHTS]
    lowest, highest = bounds.low * total / n, max(bounds.share, bounds.low / n) * total
    for j in range(len(indices)):
        i = indices[j]
        weight = min(max(weights[i] * factors[j], lowest), highest)
        sums[WEIGHTS] += weight - weights[i]
        weights[i] = weight
    mean = sums[WEIGHTS] / n
    if not _LOW <= mean <= _HIGH:
        _rescale(weights, sums, 2.0 ** -np.floor(np.log2(mean)))


@jit
def set_weights(weights, sums, bounds, values):
    """Take over all n weights, none of them below what the lowest rate needs."""
    lowest = bounds.low * values.sum() / len(values)
    sums[WEIGHTS] = 0.0
    for i in range(len(values)):
        weights[i] = max(values[i], lowest)
        sums[WEIGHTS] += weights[i]


@jit
def _rescale(weights, sums, factor):
    """Multiply all weights by a power of two, which changes no ratio between them."""
    for i in range(len(weights)):
        weights[i] *= factor
    sums[WEIGHTS] *= factor
