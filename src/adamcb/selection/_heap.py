"""A heap of events, the earliest at the root; every node has 8 children, which is one cache line of keys.

Events of equal keys leave in the order of their numbers, so what leaves next depends on the events alone, and not on
how they came to stand in the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adamcb._jit import jit

FANOUT = 8
_SHIFT = 3  # FANOUT = 2**_SHIFT


class Heap(NamedTuple):
    """The arrays of a heap: slot j holds event `events[j]` at `keys[j]`; `size[0]` slots are in use."""

    keys: np.ndarray  # float64[n]
    events: np.ndarray  # int32[n], or int64[n] for very large n
    size: np.ndarray  # int64[1]


@jit
def build_heap(heap):
    """Bring the slots into heap order. O(n)."""
    for slot in range((heap.size[0] - 2) >> _SHIFT, -1, -1):
        _sink(heap, slot, heap.keys[slot], heap.events[slot])


@jit
def replace_first(heap, key, event):
    """Take the earliest event out and put another one in."""
    _sink(heap, 0, key, event)


@jit
def remove_first(heap):
    """Take the earliest event out."""
    last = heap.size[0] - 1
    heap.size[0] = last
    if last > 0:
        _sink(heap, 0, heap.keys[last], heap.events[last])


@jit
def insert(heap, key, event):
    """Put an event in; there must be room."""
    keys, events = heap.keys, heap.events
    slot = heap.size[0]
    heap.size[0] = slot + 1
    while slot > 0:
        parent = (slot - 1) >> _SHIFT
        if not (key < keys[parent] or (key == keys[parent] and event < events[parent])):
            break
        keys[slot], events[slot] = keys[parent], events[parent]
        slot = parent
    keys[slot], events[slot] = key, event


@jit
def _sink(heap, slot, key, event):
    """Put an event into an empty slot whose subtrees are in order, or below it."""
    keys, events, size = heap.keys, heap.events, heap.size[0]
    while True:
        child = (slot << _SHIFT) + 1
        if child >= size:
            break
        first, first_key = child, keys[child]
        for other in range(child + 1, min(child + FANOUT, size)):
            other_key = keys[other]
            if other_key < first_key or (other_key == first_key and events[other] < events[first]):
                first, first_key = other, other_key
        if not (first_key < key or (first_key == key and events[first] < event)):
            break
        keys[slot], events[slot] = first_key, events[first]
        slot = first
    keys[slot], events[slot] = key, event
