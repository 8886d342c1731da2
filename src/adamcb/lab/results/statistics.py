"""Means over seeds, their spread and their intervals; how soon a curve reaches a value, and where it is at a moment.

The lab has two kinds of "±". A spread is the standard deviation of a sample (divided by n − 1): how far single runs lie
apart. An interval is a 95 % t-interval of the mean. For ratios both are taken of logarithms. Means over tasks take the
tasks as given: their intervals come from the seeds alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy import stats

from adamcb.lab.results.columns import Row

CLOCKS = {"wall": "wall_seconds", "cpu": "seconds"}
CONFIDENCE = 0.95
# A loss or a time of 0 has no logarithm.
_SMALLEST = 1e-12


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation of the finite values: NaN of none, and the spread of one value is NaN.

    Runs that diverged have no finite value, so they do not count.
    """
    finite = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    return mean, statistics.stdev(finite) if len(finite) > 1 else math.nan


def log_ratio(one: float, other: float) -> float:
    """Return log(one ÷ other) of losses or costs, which may be 0."""
    return math.log(max(one, _SMALLEST) / max(other, _SMALLEST))


def reach(rows: Sequence[Row], measure: str, target: float, *columns: str) -> tuple[float, ...] | None:
    """Return where training first had a loss at or below `target`, in the units of `columns`; None if it never had.

    Between two evaluations the logarithm of the loss is taken to be a straight line. The first row, before the first
    step, is where a run starts and nothing that it reached.
    """
    for before, after in pairwise(rows):
        if after[measure] <= target:
            share = _share(before[measure], after[measure], target)
            return tuple(before[name] + share * (after[name] - before[name]) for name in columns)
    return None


def _share(before: float, after: float, target: float) -> float:
    """Return how far between two losses a third lies, in logarithms."""
    if not before > target >= after:
        return 1.0
    if after <= 0.0:
        return (before - target) / (before - after)
    return math.log(before / target) / math.log(before / after)


def value_at(rows: Sequence[Row], measure: str, seconds: float, clock: str) -> float:
    """Return a measure after so many seconds, or at the end of a run that ended before."""
    column = CLOCKS[clock]
    after = next((number for number, row in enumerate(rows) if row[column] >= seconds), None)
    if after is None or after == 0:
        return rows[-1 if after is None else 0][measure]
    low, high = rows[after - 1], rows[after]
    share = (seconds - low[column]) / (high[column] - low[column])
    if measure.endswith("loss") and min(low[measure], high[measure]) > 0.0:
        return math.exp((1.0 - share) * math.log(low[measure]) + share * math.log(high[measure]))
    return (1.0 - share) * low[measure] + share * high[measure]


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        mean: The mean; of logarithms, where ratios are meant.
        error: Its standard error; NaN from a single seed.
        freedom: Degrees of freedom.
        at_least: Whether some run had not got there when it ended, so that the mean is a lower bound.
    """

    mean: float
    error: float
    freedom: float
    at_least: bool = False

    @property
    def margin(self) -> float:
        """Half the width of the interval; NaN if there is none."""
        if self.at_least or not self.freedom > 0.0 or math.isnan(self.error):
            return math.nan
        return float(stats.t.ppf(0.5 + CONFIDENCE / 2.0, self.freedom)) * self.error

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if math.isnan(self.margin) else f" ± {self.margin:.2f}")


def estimate(values: Sequence[float], *, at_least: bool = False) -> Estimate:
    """Return the mean over seeds."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), error, len(values) - 1, at_least)


@dataclass(frozen=True)
class Column:
    """A number of a report.

    Attributes:
        title: Its heading.
        value: What it is of one run, from the rows that it needs.
        is_ratio: Whether `value` is the logarithm of a ratio; otherwise it is a difference.
        reached: The field of the run that is None where the run did not get there; empty: there is none.
    """

    title: str
    value: Callable[..., float]
    is_ratio: bool = True
    reached: str = ""


def combine(tasks: Sequence[Estimate]) -> Estimate:
    """Return the mean over tasks, each of which counts the same; degrees of freedom by Welch and Satterthwaite."""
    count = len(tasks)
    mean = statistics.fmean(task.mean for task in tasks)
    at_least = any(task.at_least for task in tasks)
    variances = [task.error**2 / count**2 for task in tasks]
    total = sum(variances)
    if math.isnan(total) or total == 0.0:
        return Estimate(mean, total, min(task.freedom for task in tasks), at_least)
    freedom = total**2 / sum(variance**2 / task.freedom for variance, task in zip(variances, tasks, strict=True))
    return Estimate(mean, math.sqrt(total), freedom, at_least)
