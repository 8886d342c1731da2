"""What a result is made of: the one definition of its columns.

A row of results is a dict. What is measured on each split of the data is the loss and the metrics of the task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.metrics import column_of

Row = dict[str, Any]
IMAGE_METRICS = metrics.as_config({"accuracy": metrics.accuracy})

SPLITS = {"train": "training", "test": "test"}
# Columns that hold text, and columns that hold whole numbers. Everything else is a float.
NAMES = ("method", "sweep", "condition", "task", "diverged")
COUNTS = (
    *("seed", "epoch", "epochs", "step", "steps", "max_steps", "samples", "num_samples", "batch_size"),
    *("runs", "diverged_runs", "num_draws", "num_chosen"),
)
# Quantiles of the inclusion probabilities, in units of uniform sampling's K/n.
QUANTILES = {"prob_min": 0.0, "prob_q10": 0.1, "prob_q50": 0.5, "prob_q90": 0.9, "prob_q99": 0.99, "prob_max": 1.0}
METER_READINGS = ("second_moment", "effective_sample_size", "coverage", "largest_weight")
READINGS = (*METER_READINGS, *QUANTILES)
SELECTION_COLUMNS = ("method", "seed", "epoch", "step", *READINGS, "samples")
# What is known of the samples that come with a picture, the most suspicious first. `loss`: the mean over training.
PICTURE_FIELDS = ("index", "count", "label", "prediction", "loss", "image")


@dataclass(frozen=True)
class Measure:
    """A loss or a metric on one split.

    Attributes:
        name: The column, such as "test_accuracy".
        title: What readers see, such as "test accuracy".
        higher_is_better: Whether a larger value is the better one.
        percent: Whether readers see it in percent.
    """

    name: str
    title: str
    higher_is_better: bool = False
    percent: bool = False

    @property
    def metric(self) -> str:
        """The column without its split, such as "accuracy"."""
        return self.name.partition("_")[2]

    @property
    def is_loss(self) -> bool:
        """Whether this is the loss that training lowers."""
        return self.metric == "loss"

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.higher_is_better else min(values)


def measures_of(config: Mapping[str, Any]) -> list[Measure]:
    """Return what a result folder's rows measure: losses first, then its metrics. Images have accuracy."""
    measures = [Measure(f"{split}_loss", f"{word} loss") for split, word in SPLITS.items()]
    for metric in config.get("metrics", IMAGE_METRICS):
        for split, word in SPLITS.items():
            name, title = f"{split}_{column_of(metric['name'])}", f"{word} {metric['name']}"
            measures.append(Measure(name, title, metric["better"] == "higher", bool(metric.get("percent"))))
    return measures


def distinct_measures(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], prefix: str = "") -> list[Measure]:
    """Return `measures_of` without a metric that repeats the loss; the loss takes its name, such as "log loss".

    Args:
        config: config.json.
        rows: What tells: a metric repeats the loss if the two are alike in every row on both splits.
        prefix: What stands before the names of measures in the rows' columns.
    """
    measures = measures_of(config)
    metrics = dict.fromkeys(measure.metric for measure in measures if not measure.is_loss)
    repeats = [metric for metric in metrics if _repeats_loss(metric, rows, prefix)]
    titles = {measure.name: measure.title for measure in measures if measure.metric in repeats[:1]}
    return [
        replace(measure, title=titles.get(measure.name.replace("_loss", f"_{repeats[0]}"), measure.title))
        if measure.is_loss and repeats
        else measure
        for measure in measures
        if measure.metric not in repeats
    ]


def _repeats_loss(metric: str, rows: Sequence[Mapping[str, Any]], prefix: str) -> bool:
    columns = [(f"{prefix}{split}_{metric}", f"{prefix}{split}_loss") for split in SPLITS]
    values = [
        [math.nan if row.get(name) is None else float(row[name]) for name in pair] for row in rows for pair in columns
    ]
    known = [pair for pair in values if all(map(math.isfinite, pair))]  # runs that diverged tell nothing
    return bool(known) and all(math.isclose(*pair, rel_tol=1e-4) for pair in known)


def result_columns(config: Mapping[str, Any]) -> list[str]:
    """Return the columns of results.csv.

    `seconds` are the processor's (see `Clock`). `diverged` says when and why a run did, in all its rows.
    """
    names = [measure.name for measure in measures_of(config)]
    return ["method", "seed", "epoch", "step", "seconds", *names, "wall_seconds", "diverged"]
