"""The summary of a comparison: one record for each method.

"Final" is after the last epoch, "best" the best epoch of each run. Both are means over seeds with their spread. Steps,
samples and seconds to the baseline: the first evaluation at which a run's training loss is at or below the final
training loss of the baseline with the same seed, averaged over the runs that got there. The baseline is Adam, or the
first method where there is no Adam.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from adamcb.lab.results.columns import Row, measures_of
from adamcb.lab.results.statistics import mean_and_spread

BASELINE = "adam"
# Costs until a run reaches the baseline's final loss: name and column.
TO_BASELINE = {"steps": "step", "samples": "samples", "seconds": "seconds"}

COSTS = ("samples", "seconds", "wall_seconds")

Curves = dict[tuple[str, int], list[Row]]


def summary_columns(config: Mapping[str, Any]) -> list[str]:
    """Return the columns of summary.csv."""
    measured = [f"{when}_{measure.name}" for measure in measures_of(config) for when in ("final", "best")]
    with_spread = [*measured, *COSTS]
    return [
        "method",
        "runs",
        "diverged_runs",
        *(f"{name}{suffix}" for name in with_spread for suffix in ("", "_std")),
        "reached_baseline",
        *(f"{name}_to_baseline" for name in TO_BASELINE),
    ]


def curves_of(results: Sequence[Row]) -> Curves:
    """Return the rows of every run, by method and seed."""
    curves: Curves = {}
    for row in results:
        curves.setdefault((row["method"], row["seed"]), []).append(row)
    return curves


def baseline_of(methods: Sequence[str]) -> str:
    """Return the method that the others are measured against."""
    return BASELINE if BASELINE in methods else methods[0]


def complete_curves(results: Sequence[Row]) -> Curves:
    """Return the rows of every run that made all its steps and did not diverge."""
    last = max((row["step"] for row in results), default=0)
    curves = curves_of([row for row in results if not row.get("diverged")])
    return {run: rows for run, rows in curves.items() if rows[-1]["step"] == last}


def all_diverged(summary: Sequence[Row]) -> bool:
    """Return whether no run of a comparison came to its end."""
    return not any(record["runs"] for record in summary)


def first_at(rows: Sequence[Row], target: float) -> Row | None:
    """Return the first row after step 0 whose training loss is at or below `target`."""
    return next((row for row in rows if row["step"] > 0 and row["train_loss"] <= target), None)


def summarize(results: Sequence[Row], config: Mapping[str, Any]) -> list[Row]:
    """Return one record for each method, with `summary_columns`; None where there is nothing to say.

    A run that diverged counts in `diverged_runs` and in nothing else.
    """
    curves = complete_curves(results)
    baseline = baseline_of(config["methods"])
    targets = {seed: rows[-1]["train_loss"] for (method, seed), rows in curves.items() if method == baseline}
    return [_summarize_method(method, curves, targets, config) for method in config["methods"]]


def _summarize_method(method: str, curves: Curves, targets: dict[int, float], config: Mapping[str, Any]) -> Row:
    runs = {seed: rows for (name, seed), rows in curves.items() if name == method}
    record: Row = {"method": method, "runs": len(runs), "diverged_runs": len(config["seeds"]) - len(runs)}
    for measure in measures_of(config):
        name = measure.name
        record |= _moments(f"final_{name}", [rows[-1][name] for rows in runs.values()])
        record |= _moments(f"best_{name}", [measure.best([row[name] for row in rows]) for rows in runs.values()])
    for name in COSTS:
        record |= _moments(name, [rows[-1][name] for rows in runs.values()])
    hits = [first_at(rows, targets[seed]) for seed, rows in runs.items() if seed in targets]
    hits = [row for row in hits if row is not None]
    record["reached_baseline"] = len(hits)
    for name, column in TO_BASELINE.items():
        record[f"{name}_to_baseline"] = statistics.fmean(row[column] for row in hits) if hits else None
    return record


def _moments(name: str, values: Sequence[float]) -> Row:
    mean, spread = mean_and_spread(values)
    return {name: mean if values else None, f"{name}_std": spread if len(values) > 1 else None}
