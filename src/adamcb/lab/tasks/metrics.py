"""Metrics: what a task is judged by, as functions of all outputs and targets of a split.

`outputs` and `targets` are what the task's `predict` returned for all samples, joined along the first dimension. Where
a metric needs a score of the positive class, outputs may be float[n], float[n, 1], or the two logits float[n, 2].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb import _checks


@dataclass(frozen=True)
class Metric:
    """A function of (outputs, targets), and which of two values is the better one.

    Attributes:
        function: Returns one number.
        better: "higher" or "lower".
        percent: Whether readers see it in percent.

    Example:
        >>> import torch
        >>> error = Metric(lambda outputs, targets: (outputs - targets).abs().mean(), better="lower")
        >>> error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.0
    """

    function: Callable[[Tensor, Tensor], Any]
    better: str = "higher"
    percent: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"`function` of a metric must be callable, got a {type(self.function).__name__}.")
        _checks.one_of("better", self.better, ("higher", "lower"))
        _checks.boolean("percent", self.percent)

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the metric as a float."""
        for name, rows in (("outputs", outputs), ("targets", targets)):
            _checks.instance(name, rows, Tensor, "a tensor")
            if rows.is_nested or rows.is_meta or rows.layout != torch.strided or rows.dim() == 0:
                raise ValueError(
                    f"`{name}` must be a dense tensor with a row a sample, got {_checks.shown(name, rows)}."
                )
        return float(self.function(outputs, targets))


def as_metric(metric: Any) -> Metric:
    """Return `metric`, or a plain function as a metric of which more is better."""
    return metric if isinstance(metric, Metric) else Metric(metric)


def column_of(metric: str) -> str:
    """Return a metric's name as part of a column's name.

    Example:
        >>> column_of("average precision")
        'average_precision'
    """
    return "".join(letter if letter.isalnum() else "_" for letter in metric.lower())


def as_config(metrics: Mapping[str, Metric]) -> list[dict[str, Any]]:
    """Return what config.json holds of metrics."""
    return [{"name": name, "better": metric.better, "percent": metric.percent} for name, metric in metrics.items()]


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] > 1:
        predicted = outputs.argmax(-1)
    else:
        predicted = (outputs.reshape(targets.shape) > 0.0).to(targets.dtype)
    return (predicted == targets).double().mean().item()


def positive_scores(outputs: Tensor) -> Tensor:
    """Return float64[n], the logit of the positive class of every sample."""
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        return (outputs[:, 1] - outputs[:, 0]).double()
    if outputs.dim() == 1 or outputs.shape[1:].numel() == 1:
        return outputs.reshape(-1).double()
    raise ValueError(
        f"`outputs` must be one score a sample, or two logits, got outputs of shape {tuple(outputs.shape)}."
    )


def _ranked(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return true and false positives, float64[m], at each of the m different thresholds, the highest first."""
    scores, order = positive_scores(outputs).sort(descending=True, stable=True)
    hits = targets.reshape(-1)[order].double()
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = scores[1:] != scores[:-1]  # equal scores share a threshold
    true = hits.cumsum(0)[last]
    return true, torch.arange(1.0, len(scores) + 1.0, dtype=torch.float64)[last] - true


def _average_precision(outputs: Tensor, targets: Tensor) -> float:
    """With more than two classes: the mean over those that occur in `targets`, each against the rest."""
    if outputs.dim() == 2 and outputs.shape[1] > 2:
        scores = outputs.double().log_softmax(1)
        kinds = targets.unique().tolist()
        return sum(_average_precision(scores[:, kind], targets == kind) for kind in kinds) / len(kinds)
    true, false = _ranked(outputs, targets)
    if not true[-1] > 0.0:
        return math.nan
    steps = torch.diff(true, prepend=torch.zeros(1, dtype=torch.float64)) / true[-1]
    return float((steps * true / (true + false)).sum())


def _roc_auc(outputs: Tensor, targets: Tensor) -> float:
    true, false = _ranked(outputs, targets)
    if not (true[-1] > 0.0 and false[-1] > 0.0):
        return math.nan
    zero = torch.zeros(1, dtype=torch.float64)
    return float(torch.trapezoid(torch.cat([zero, true]) / true[-1], torch.cat([zero, false]) / false[-1]))


def _log_loss(outputs: Tensor, targets: Tensor) -> float:
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        return F.cross_entropy(outputs.double(), targets.reshape(-1).long()).item()
    return F.binary_cross_entropy_with_logits(positive_scores(outputs), targets.reshape(-1).double()).item()


def _calibration_error(outputs: Tensor, targets: Tensor, num_bins: int = 15) -> float:
    """The expected calibration error: |confidence − frequency|, averaged over the samples in bins of equal width."""
    if outputs.dim() == 2 and outputs.shape[1] > 2:
        confidence, predicted = outputs.double().softmax(1).max(1)
        hits = (predicted == targets.reshape(-1)).double()
    else:
        confidence, hits = positive_scores(outputs).sigmoid(), targets.reshape(-1).double()
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gaps = torch.zeros(num_bins, dtype=torch.float64).index_add(0, bins, confidence - hits)
    return float(gaps.abs().sum() / len(hits))


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.double().reshape(targets.shape) - targets.double()).square().mean().sqrt().item()


def _perplexity(outputs: Tensor, targets: Tensor) -> float:
    if outputs.shape == targets.shape:  # negative log-likelihoods of the tokens
        return math.exp(outputs.double().mean().item())
    return math.exp(F.cross_entropy(outputs.flatten(0, -2), targets.flatten().long()).item())


def _relative_l2_error(outputs: Tensor, targets: Tensor) -> float:
    error = outputs.double().reshape(targets.shape) - targets.double()
    return (torch.linalg.vector_norm(error) / torch.linalg.vector_norm(targets.double())).item()


accuracy = Metric(_accuracy, percent=True)
average_precision = Metric(_average_precision)
roc_auc = Metric(_roc_auc)
log_loss = Metric(_log_loss, better="lower")
calibration_error = Metric(_calibration_error, better="lower")
rmse = Metric(_rmse, better="lower")
perplexity = Metric(_perplexity, better="lower")
relative_l2_error = Metric(_relative_l2_error, better="lower")
