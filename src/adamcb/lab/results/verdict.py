"""The verdict: what a comparison says, in words. Everything in it is computed from the runs.

Methods are compared with the baseline seed by seed. Ratios are geometric means; ± is a 95 % interval over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adamcb.lab.results.columns import Measure, Row, measures_of
from adamcb.lab.results.statistics import Estimate, estimate, reach
from adamcb.lab.results.summary import baseline_of, complete_curves

# What counts as a saving, as the same loss, and as no more time.
_SAVED, _SAME_LOSS, _SAME_TIME = 0.97, 1.03, 1.03
# What counts as much worse with one seed, which has no interval: a point of a percentage, a fiftieth of other measures.
_POINT, _FIFTIETH = 0.01, 0.02
_SMALLEST = 1e-12
_USE, _AVOID = "use it", "do not use it here"


@dataclass(frozen=True)
class Against:
    """A method against the baseline, over the seeds that both finished.

    Attributes:
        samples: Samples of the whole run ÷ the baseline's.
        seconds: Seconds of the whole run ÷ the baseline's.
        loss: Final training loss ÷ the baseline's, as a logarithm.
        reached: Samples and seconds until the training loss was the baseline's final one ÷ all of the baseline's; None
            if a run did not get there.
        metric: The measure that is reported: the task's first metric on the test split, or the test loss.
        difference: Its difference to the baseline's, above 0 where the method is better.
        level: What it is for the baseline.
    """

    samples: float
    seconds: float
    loss: Estimate
    reached: tuple[float, float] | None
    metric: Measure
    difference: Estimate
    level: float


def verdict(results: Sequence[Row], config: Mapping[str, Any], batches: Mapping[str, tuple[int, int]]) -> str:
    """Return one sentence for each method but the baseline, or one that says that there is no other.

    A run that diverged is compared with nothing. A method that diverged more often than the baseline is not advised.

    Args:
        results: The rows of results.csv.
        config: config.json.
        batches: By method, how many batches were chosen, and how many were drawn.
    """
    curves = complete_curves(results)
    if not curves:
        return "Every run diverged, so there is nothing to compare. Try a lower learning rate: --lr."
    baseline = baseline_of(config["methods"])
    others = [method for method in config["methods"] if method != baseline]
    if not others:
        return f"{config['labels'][baseline]} ran alone, so there is nothing to compare it with."
    return "\n".join(_sentence(method, baseline, results, config, batches.get(method)) for method in others)


def _sentence(
    method: str,
    baseline: str,
    results: Sequence[Row],
    config: Mapping[str, Any],
    batches: tuple[int, int] | None,
) -> str:
    label, other = config["labels"][method], config["labels"][baseline]
    lost, lost_by_baseline = (_diverged(name, results, config) for name in (method, baseline))
    found = compare_with(method, baseline, results, config)
    if found is None:
        who = next(
            (config["labels"][name] for name, runs in ((method, lost), (baseline, lost_by_baseline)) if runs), ""
        )
        why = f": {who} diverged" if who else "; see the notes"
        return f"{label}: no run can be compared with one of {other}{why}."
    if batches is not None and method in config.get("chooses", ()) and batches[0] == 0:
        return f"{label} chose 0 of {batches[1]} batches: it has no effect here."
    if found.reached is not None:
        samples, seconds = found.reached
        text = f"{label} reached {other}'s final training loss"
    else:
        samples, seconds = found.samples, found.seconds
        text = f"{label} ended at {math.exp(found.loss.mean):.2f} times {other}'s training loss"
    text += f" with {100 * samples:.0f} % of the samples, in {seconds:.2f} of the time; {_difference(found)}"
    if lost > lost_by_baseline:
        return f"{text}, but {lost} of its {len(config['seeds'])} runs diverged: {_AVOID}."
    return f"{text}: {_advice(found)}."


def _diverged(method: str, results: Sequence[Row], config: Mapping[str, Any]) -> int:
    """Return how many runs of a method did not come to their end."""
    return len(config["seeds"]) - sum(name == method for name, _ in complete_curves(results))


def compare_with(method: str, baseline: str, results: Sequence[Row], config: Mapping[str, Any]) -> Against | None:
    """Return a method against the baseline; None if they have no complete runs with the same seed."""
    curves = complete_curves(results)
    seeds = [seed for (name, seed) in curves if name == method and (baseline, seed) in curves]
    if not seeds:
        return None
    pairs = [(curves[method, seed], curves[baseline, seed]) for seed in seeds]
    tests = [measure for measure in measures_of(config) if measure.name.startswith("test_")]
    metric = next((measure for measure in tests if not measure.is_loss), tests[0])
    sign = 1.0 if metric.higher_is_better else -1.0
    return Against(
        samples=_mean_ratio([(own[-1]["samples"], other[-1]["samples"]) for own, other in pairs]),
        seconds=_mean_ratio([(own[-1]["seconds"], other[-1]["seconds"]) for own, other in pairs]),
        loss=estimate([_log_ratio(own[-1]["train_loss"], other[-1]["train_loss"]) for own, other in pairs]),
        reached=_reached(pairs),
        metric=metric,
        difference=estimate([sign * (own[-1][metric.name] - other[-1][metric.name]) for own, other in pairs]),
        level=estimate([other[-1][metric.name] for _, other in pairs]).mean,
    )


def _reached(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]]) -> tuple[float, float] | None:
    samples, seconds = [], []
    for own, other in pairs:
        hit = reach(own, "train_loss", other[-1]["train_loss"], "samples", "seconds")
        if hit is None:
            return None
        samples.append((hit[0], other[-1]["samples"]))
        seconds.append((hit[1], other[-1]["seconds"]))
    return _mean_ratio(samples), _mean_ratio(seconds)


def _log_ratio(one: float, other: float) -> float:
    return math.log(max(one, _SMALLEST) / max(other, _SMALLEST))


def _mean_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return math.exp(estimate([_log_ratio(one, other) for one, other in pairs]).mean)


def _difference(found: Against) -> str:
    """Return how the metric differs, with its sign as the reader expects it: more is more."""
    scale = 100.0 if found.metric.percent else 1.0
    mean = scale * found.difference.mean * (1.0 if found.metric.higher_is_better else -1.0)
    margin = scale * found.difference.margin
    size = margin if math.isfinite(margin) and margin > 0.0 else abs(mean)
    digits = 2 if found.metric.percent else min(6, max(2, 1 - math.floor(math.log10(size)))) if size > 0.0 else 2
    unit = " points" if found.metric.percent else ""
    spread = f" ± {margin:.{digits}f}{unit}" if math.isfinite(margin) else f"{unit} (one seed)"
    return f"{found.metric.title} {mean:+.{digits}f}{spread}".replace("-", "−")


def _advice(found: Against) -> str:
    if not math.isnan(found.difference.margin):
        return _advice_with(found, found.difference.margin)
    # One seed cannot tell a difference from chance, unless it is a large one.
    if found.difference.mean < -(_POINT if found.metric.percent else _FIFTIETH * abs(found.level)):
        return f"{_AVOID}, unless more seeds disagree"
    advice = _advice_with(found, math.inf)
    return f"{_USE}, if more seeds agree" if advice == _USE else advice


def _advice_with(found: Against, margin: float) -> str:
    samples, seconds = found.reached or (found.samples, found.seconds)
    same_loss = found.reached is not None or math.exp(found.loss.mean) <= _SAME_LOSS
    if found.difference.mean < -margin:
        return _AVOID
    if same_loss and seconds <= _SAVED:
        return _USE
    if found.difference.mean > margin and found.seconds <= _SAME_TIME:
        return _USE
    if same_loss and samples <= _SAVED:
        return "it saves samples here, but no time"
    return "it gains nothing here" if found.seconds > _SAME_TIME or not same_loss else "it makes no difference here"
