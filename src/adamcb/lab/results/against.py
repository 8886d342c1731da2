"""A method against the baseline, seed by seed: what it took, and which test measures became better or worse.

Ratios are geometric means; ± is a 95 % interval over seeds. With one seed there is none, and only what is much worse
counts as worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adamcb.lab.results.columns import Measure, Row, distinct_measures, measures_of
from adamcb.lab.results.statistics import Estimate, estimate, log_ratio, reach
from adamcb.lab.results.summary import complete_curves

# What is much: a point of a percentage, a fiftieth of what the task is judged by and of scores, a tenth of the test
# loss. Other errors may rest on few samples: a calibration error differs by a third from seed to seed.
_POINT, _FIFTIETH, _TENTH, _HALF = 0.01, 0.02, 0.1, 0.5


@dataclass(frozen=True)
class Change:
    """How a measure of the test split differs from the baseline's.

    Attributes:
        measure: Which.
        difference: Above 0 where the method is better.
        level: What it is for the baseline.
        much: How large a difference matters.
        decides: Whether it is the first metric or the test loss.
    """

    measure: Measure
    difference: Estimate
    level: float
    much: float
    decides: bool

    @property
    def is_worse(self) -> bool:
        """Whether it is worse by more than the interval; with one seed, by much."""
        margin = self.difference.margin
        return self.difference.mean < -(self.much if math.isnan(margin) else margin)

    @property
    def is_much_worse(self) -> bool:
        """Whether it is worse by what matters, sure or not."""
        return self.difference.mean < -self.much

    @property
    def is_better(self) -> bool:
        """Whether it is better by more than the interval."""
        return self.difference.mean > self.difference.margin

    @property
    def may_be_worse(self) -> bool:
        """Whether more seeds could show it much worse: it looks so now, or the interval of what decides does."""
        margin = self.difference.margin
        within = self.decides and self.difference.mean - margin < -self.much
        return math.isnan(margin) or within or self.is_much_worse

    @property
    def ratio(self) -> float:
        """The measure ÷ the baseline's; NaN where that means nothing."""
        if self.measure.higher_is_better or self.measure.percent or not self.level > 0.0:
            return math.nan
        return (self.level - self.difference.mean) / self.level


@dataclass(frozen=True)
class Against:
    """A method against the baseline, over the seeds that both finished.

    Attributes:
        samples: Samples of the whole run ÷ the baseline's.
        seconds: Seconds of the whole run ÷ the baseline's.
        loss: Final training loss ÷ the baseline's, as a logarithm.
        reached: Samples and seconds until the training loss was the baseline's final one ÷ all of the baseline's; None
            if a run did not get there.
        changes: How each measure of the test split differs. The first is what the task is judged by: its first metric,
            or the test loss.
    """

    samples: float
    seconds: float
    loss: Estimate
    reached: tuple[float, float] | None
    changes: list[Change]

    @property
    def worse(self) -> list[Change]:
        """What is worse."""
        return [change for change in self.changes if change.is_worse]


def compare_with(method: str, baseline: str, results: Sequence[Row], config: Mapping[str, Any]) -> Against | None:
    """Return a method against the baseline; None if they have no complete runs with the same seed."""
    curves = complete_curves(results)
    seeds = [seed for (name, seed) in curves if name == method and (baseline, seed) in curves]
    if not seeds:
        return None
    pairs = [(curves[method, seed], curves[baseline, seed]) for seed in seeds]
    return Against(
        samples=_mean_ratio([(own[-1]["samples"], other[-1]["samples"]) for own, other in pairs]),
        seconds=_mean_ratio([(own[-1]["seconds"], other[-1]["seconds"]) for own, other in pairs]),
        loss=estimate([log_ratio(own[-1]["train_loss"], other[-1]["train_loss"]) for own, other in pairs]),
        reached=_reached(pairs),
        changes=_changes(pairs, _tests_of(config, [row for rows in curves.values() for row in rows])),
    )


def _tests_of(config: Mapping[str, Any], rows: Sequence[Row]) -> list[Measure]:
    """Return the measures of the test split: metrics first, in the task's order, and then the loss if it is none."""
    titles = [measure.title for measure in measures_of(config) if not measure.is_loss]
    tests = [measure for measure in distinct_measures(config, rows) if measure.name.startswith("test_")]
    return sorted(tests, key=lambda each: titles.index(each.title) if each.title in titles else len(titles))


def _changes(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]], tests: Sequence[Measure]) -> list[Change]:
    changes = []
    for place, measure in enumerate(tests):
        name, sign = measure.name, 1.0 if measure.higher_is_better else -1.0
        level = estimate([other[-1][name] for _, other in pairs]).mean
        share = _FIFTIETH if place == 0 or measure.higher_is_better else _TENTH if measure.is_loss else _HALF
        much = _POINT if measure.percent else share * abs(level)
        difference = estimate([sign * (own[-1][name] - other[-1][name]) for own, other in pairs])
        changes.append(Change(measure, difference, level, much, decides=place == 0 or measure.is_loss))
    return changes


def _reached(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]]) -> tuple[float, float] | None:
    samples, seconds = [], []
    for own, other in pairs:
        hit = reach(own, "train_loss", other[-1]["train_loss"], "samples", "seconds")
        if hit is None:
            return None
        samples.append((hit[0], other[-1]["samples"]))
        seconds.append((hit[1], other[-1]["seconds"]))
    return _mean_ratio(samples), _mean_ratio(seconds)


def _mean_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return math.exp(estimate([log_ratio(one, other) for one, other in pairs]).mean)
