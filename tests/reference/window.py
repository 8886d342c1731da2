"""What a window holds, by its definition: every sample of the stream has one place, for `passes` epochs."""

from __future__ import annotations


def contents(stream: list, size: int, passes: int, epoch: int) -> list:
    """Return the samples by place in an epoch, counted from 0; the stream begins again when it ends."""
    block = size // passes
    held: list = [None] * size
    for number in range(size + epoch * block):  # of the sample, in the order of reading
        held[number % size] = stream[number % len(stream)]
    return held
