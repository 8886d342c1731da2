"""A shuffled order by its definition: a Feistel network on whole numbers, walked until it falls below n."""

from __future__ import annotations

_MASK = 2**64 - 1


def _mix(number: int) -> int:
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def shuffled(n: int, seed: int) -> list[int]:
    """Return the sample at every position."""
    bits = (n - 1).bit_length()
    low_bits = bits // 2
    keys = [_mix((seed + number * 0x9E3779B97F4A7C15) & _MASK) for number in range(1, 9)]

    def once(number: int) -> int:
        high, low = divmod(number, 2**low_bits)
        for turn, key in enumerate(keys):
            if turn % 2 == 0:
                low ^= _mix((high + key) & _MASK) % 2**low_bits
            else:
                high ^= _mix((low + key) & _MASK) % 2 ** (bits - low_bits)
        return high * 2**low_bits + low

    def walk(number: int) -> int:
        number = once(number)
        return number if number < n else walk(number)

    return [walk(position) for position in range(n)]
