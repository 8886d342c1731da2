"""How a quantity grows: the exponent of a power law, with an interval."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adamcb import _checks

# Student's t for 95 % at 1, 2, … degrees of freedom. The lab has scipy's, which it needs for parts of a degree; this
# room does without scipy.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval, NaN for a single value."""

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.margin:.2f}" if math.isfinite(self.margin) else f"{self.mean:.2f}"


def interval(values: Any) -> Interval:
    """Return the mean of independent values and its 95 % interval by Student's t.

    Example:
        >>> str(interval([1.0, 2.0, 3.0]))
        '2.00 ± 2.48'
    """
    array = _checks.array("values", values).astype(np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"`values` must be a vector that is not empty, got values of shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"`values` must be finite, got {array[~np.isfinite(array)][0]}.")
    if len(array) == 1:
        return Interval(float(array[0]), math.nan)
    student = _STUDENT[len(array) - 2] if len(array) - 2 < len(_STUDENT) else 1.96 + 2.4 / (len(array) - 1)
    return Interval(float(array.mean()), float(student * array.std(ddof=1) / math.sqrt(len(array))))


def growth_exponent(across: Any, values: Any) -> Interval:
    """Return b of values ≈ a·acrossᵇ: the slope of the least-squares line through the logarithms, over seeds.

    Args:
        across: [points], above 0, such as the horizons T.
        values: [seeds, points], above 0. Each seed gives a slope; the interval is over seeds.

    Example:
        >>> growth_exponent([1, 10, 100], [[2, 20, 200], [3, 30, 300]])
        Interval(mean=1.0, margin=0.0)
    """
    x = _checks.array("across", across).astype(np.float64)
    y = np.atleast_2d(_checks.array("values", values).astype(np.float64))
    if x.ndim != 1 or len(x) < 2 or y.shape[1:] != x.shape:
        raise ValueError(
            f"`values` must be [seeds, points] for at least two points, got values of shape {y.shape} "
            f"and across of shape {x.shape}."
        )
    for name, numbers in (("across", x), ("values", y)):
        if not (numbers.size and numbers.min() > 0.0 and numbers.max() < math.inf):
            got = f"a smallest value of {numbers.min()}" if numbers.size else "none"
            raise ValueError(f"`{name}` must be finite and above 0, got {got}.")
    if x.min() == x.max():
        raise ValueError(f"`across` must hold at least two different numbers, got {x[0]} alone.")
    x = np.log(x) - np.log(x).mean()
    slopes = np.log(y) @ x / (x @ x)
    return interval(np.round(slopes, 12))
