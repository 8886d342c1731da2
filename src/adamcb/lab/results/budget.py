"""What the rows of `adamcb bench budget` say: each method against Adam with the whole budget, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from adamcb.lab.results.columns import Measure, Row
from adamcb.lab.results.statistics import Column, Estimate, combine, estimate, log_ratio
from adamcb.lab.results.summary import BASELINE

# The seed that learning rates are tuned on, and among which.
HELD_OUT = 1000
LEARNING_RATES = (3e-4, 1e-3, 3e-3)
# With the whole budget these are Adam, whose learning rate they take.
SAME_AS_ADAM = ("small-batches", "random-pruning")
# What a task is judged by: the first of these that its rows have.
HEADLINES = (
    Measure("test_average_precision", "test average precision", higher_is_better=True),
    Measure("test_perplexity", "test perplexity"),
    Measure("test_accuracy", "test accuracy", higher_is_better=True, percent=True),
    Measure("test_loss", "test loss"),
)


def _ratio(name: str) -> Callable[[Row, Row], float]:
    return lambda own, adam: log_ratio(own[name], adam[name])


# Each column, computed from a run and Adam's full-budget run.
COLUMNS = {
    "samples": Column("samples", _ratio("samples")),
    "seconds": Column("seconds", _ratio("seconds")),
    "train_loss": Column("training loss", _ratio("train_loss")),
    "test_loss": Column("test loss", _ratio("test_loss")),
}


def headline_of(rows: Sequence[Row]) -> Measure:
    """Return what a task is judged by."""
    return next(measure for measure in HEADLINES if any(row.get(measure.name) is not None for row in rows))


def difference(measure: Measure) -> Column:
    """Return the difference of a measure to Adam's, above 0 where it is better; in points, if it is in percent."""
    scale = (100.0 if measure.percent else 1.0) * (1.0 if measure.higher_is_better else -1.0)
    unit = ", points" if measure.percent else ""
    return Column(
        f"{measure.title}{unit}", lambda own, adam: scale * (own[measure.name] - adam[measure.name]), is_ratio=False
    )


def tuned_as(method: str) -> str:
    """Return the method whose learning rate a method takes."""
    return BASELINE if method in SAME_AS_ADAM else method


def best_lrs(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the learning rate of each task and method that ended best with the held-out seed."""
    found: dict[tuple[str, str], float] = {}
    tried = [row for row in rows if row["seed"] == HELD_OUT]
    for key in {(row["task"], row["method"]) for row in tried}:
        own = [row for row in tried if (row["task"], row["method"]) == key and not row["diverged"]]
        if own:
            measure = headline_of(own)
            sign = 1.0 if measure.higher_is_better else -1.0
            found[key] = max(own, key=lambda row: sign * row[measure.name])["lr"]
    return found


def reported(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that the report is made of: not those of tuning, and of each method with one learning rate."""
    tuned = best_lrs(rows)
    kept = [row for row in rows if row["seed"] != HELD_OUT]
    return [row for row in kept if row["lr"] == tuned.get((row["task"], tuned_as(row["method"])), row["lr"])]


def estimates(rows: Sequence[Row], baselines: Mapping[int, Row], columns: Mapping[str, Column]) -> dict[str, Estimate]:
    """Return all columns of the runs of one method with one part of the budget on one task; none if none is sound."""
    sound = [row for row in rows if not row["diverged"] and row["seed"] in baselines]
    if not sound:
        return {}
    return {
        name: estimate([column.value(row, baselines[row["seed"]]) for row in sound]) for name, column in columns.items()
    }


def baselines_of(rows: Sequence[Row], task: str) -> dict[int, Row]:
    """Return Adam's runs with the whole budget, by seed."""
    own = [row for row in rows if (row["task"], row["method"], row["fraction"]) == (task, BASELINE, 1.0)]
    return {row["seed"]: row for row in own if not row["diverged"]}


def overall(rows: Sequence[Row], method: str, fraction: float, tasks: Sequence[str]) -> dict[str, Estimate] | None:
    """Return the means over tasks; None if the method was not run on all of them."""
    found = []
    for task in tasks:
        own = [row for row in rows if (row["task"], row["method"], row["fraction"]) == (task, method, fraction)]
        found.append(estimates(own, baselines_of(rows, task), COLUMNS))
    if not found or not all(found):
        return None
    return {name: combine([each[name] for each in found]) for name in COLUMNS}
