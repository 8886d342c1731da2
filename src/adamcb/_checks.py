"""Argument checks: the one place that words range and shape errors.

Every message names the argument, the rule and the value: "`name` must <rule>, got name=<value>." Comparisons are
written in the direction that also rejects NaN. Arrays are never printed: their shape, or the first bad entry, is.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np


def integer(name: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int, or raise unless it is an integer (not a bool) with low ≤ value ≤ high."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"`{name}` must be an integer, got {name}={value!r} of type {type(value).__name__}.")
    number = int(value)
    if low is not None and number < low:
        raise ValueError(f"`{name}` must be at least {low}, got {name}={number}.")
    if high is not None and number > high:
        raise ValueError(f"`{name}` must be at most {high}, got {name}={number}.")
    return number


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return `value` as a finite float, or raise unless it lies in the interval from `low` to `high`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number, got {name}={value!r} of type {type(value).__name__}.")
    number = float(value)
    above = low < number if low_open else low <= number
    below = number < high if high_open else number <= high
    if not (above and below and math.isfinite(number)):
        interval = f"{'(' if low_open or low == -math.inf else '['}{low:g}, {high:g}"
        interval += ")" if high_open or high == math.inf else "]"
        raise ValueError(f"`{name}` must be a finite number in {interval}, got {name}={value}.")
    return number


def boolean(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise unless it is one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {name}={value!r} of type {type(value).__name__}.")
    return bool(value)


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return `value`, or raise unless it is one of the `allowed` words."""
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"`{name}` must be one of {words}, got {name}={value!r}.")
    return value


def vector(name: str, value: Any, *, length: int | None = None) -> np.ndarray:
    """Return `value` as a float64 vector of finite numbers ≥ 0, or raise."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be a vector of numbers, got {name} of type {type(value).__name__}.") from error
    if array.ndim != 1 or (length is not None and len(array) != length):
        rule = "a vector" if length is None else f"a vector of length {length}"
        raise ValueError(f"`{name}` must be {rule}, got {name} of shape {tuple(array.shape)}.")
    # One pass in the good case: NaN fails both comparisons, so it can hide from neither.
    if array.size and not (array.min() >= 0.0 and array.max() < math.inf):
        bad = np.flatnonzero(~((array >= 0.0) & (array < math.inf)))
        raise ValueError(
            f"`{name}` must hold finite numbers at or above 0, got {name}[{bad[0]}]={array[bad[0]]} "
            f"({len(bad)} such of {len(array)})."
        )
    return array
