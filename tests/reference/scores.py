"""The scores of a batch by their definition, one sample after another, in Python's own numbers."""

from __future__ import annotations

from collections.abc import Sequence


def slow_scores(measured: Sequence[float], arrived: Sequence[float], *, divides: bool) -> list[float]:
    """Return the score of each sample: what was measured, per unit of the gradient that arrived at its loss.

    Nothing arrived: the sample had no part in the step, and its score is 0.
    """
    if not divides:
        return [float(value) for value in measured]
    return [
        float(value) / abs(float(gradient)) if gradient else 0.0
        for value, gradient in zip(measured, arrived, strict=True)
    ]


def slow_is_scaled(arrived: Sequence[float], loss_weights: Sequence[float], factor: float) -> bool:
    """Tell whether some loss was multiplied by more than its weight and the number of ranks, rounding apart."""
    return any(
        abs(float(gradient)) / (factor * float(weight)) > 1.01
        for gradient, weight in zip(arrived, loss_weights, strict=True)
    )
