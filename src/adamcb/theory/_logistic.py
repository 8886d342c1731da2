"""Multinomial logistic regression with an L2 penalty: a convex problem whose minimizer can be had to any accuracy.

Parameters θ are a matrix [classes, features + 1]; its last column multiplies a constant 1. The loss of sample i is
    ℓᵢ(θ) = −log softmax(θ x̃ᵢ)[yᵢ] + (μ/2) ‖θ‖²,    x̃ᵢ = (xᵢ, 1),
so that the penalty is part of every sample's loss, and f(θ) = (1/n) Σᵢ ℓᵢ(θ). With δᵢ = softmax(θ x̃ᵢ) − e_yᵢ the
gradient is δᵢ x̃ᵢᵀ + μ θ, and its norm needs no gradient:
    ‖∇ℓᵢ‖² = ‖δᵢ‖² ‖x̃ᵢ‖² + 2μ δᵢ·(θ x̃ᵢ) + μ² ‖θ‖².
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import LBFGS

from adamcb import _checks

# L-BFGS in two passes. Near the minimum differences of values are rounding errors: the last pass does without them.
_PASSES = (("strong_wolfe", 10.0, 2000), (None, 1.0, 500))  # line search, tolerance as a multiple, iterations
# torch's L-BFGS learns nothing from steps with y·s below 1e-10, which near the minimum is all of them. Values that are
# so many times larger keep it learning.
_SCALE = 1e8
# A gradient adds up terms that float64 rounds in the 16th digit. With terms of size 1 about a thousand such errors are
# 1e-13; a smaller norm is luck, and another machine may not have it.
_LEAST_TOLERANCE = 1e-13


class Batch(NamedTuple):
    """What a batch says at θ: losses [K], gradient norms [K], and the weighted sum of the gradients, shaped as θ."""

    losses: Tensor
    norms: Tensor
    gradient: Tensor


class Minimum(NamedTuple):
    """A minimizer, the value there, and the norm of the gradient that is left."""

    params: Tensor
    value: float
    gradient_norm: float


class LogisticProblem:
    """Multinomial logistic regression with an L2 penalty on all parameters, in float64.

    Args:
        features: [n, features], any floating type.
        labels: int64 [n], classes 0, 1, ….
        penalty: μ above 0: with it the problem is strongly convex, and the minimizer unique.

    Example:
        >>> problem = LogisticProblem(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 1]), penalty=0.1)
        >>> problem.num_samples, problem.dimension
        (3, 4)
        >>> minimum = problem.minimize()
        >>> round(minimum.value, 4), minimum.gradient_norm <= 1e-8
        (0.3386, True)
    """

    def __init__(self, features: Tensor, labels: Tensor, *, penalty: float = 1e-3) -> None:
        _checks.instance("features", features, Tensor, "a tensor")
        _checks.instance("labels", labels, Tensor, "a tensor")
        if features.ndim != 2 or labels.shape != features.shape[:1] or not len(labels):
            raise ValueError(
                f"`features` must be a matrix with one row for each label, got features of shape "
                f"{tuple(features.shape)} and labels of shape {tuple(labels.shape)}."
            )
        self.penalty = _checks.real("penalty", penalty, low=0.0, low_open=True)
        if not features.is_floating_point() or not features.isfinite().all():
            raise ValueError(f"`features` must be finite floats, got features of {features.dtype}.")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or labels.min() < 0:
            raise ValueError(f"`labels` must be integers at or above 0, got labels of {labels.dtype}.")
        ones = torch.ones(len(features), 1, dtype=torch.float64)
        self.inputs = torch.cat([features.detach().to(torch.float64), ones], dim=1)
        self.labels = labels.detach().to(torch.int64)
        self.num_classes = int(self.labels.max()) + 1
        self._square_norms = self.inputs.square().sum(dim=1)

    @property
    def num_samples(self) -> int:
        """Return n."""
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """Return d, the number of parameters."""
        return self.num_classes * self.inputs.shape[1]

    def subset(self, num_samples: int) -> LogisticProblem:
        """Return the problem on the first `num_samples` samples, with the same classes."""
        count = _checks.integer("num_samples", num_samples, low=1, high=self.num_samples)
        part = LogisticProblem(self.inputs[:count, :-1], self.labels[:count], penalty=self.penalty)
        part.num_classes = self.num_classes
        return part

    def start(self) -> Tensor:
        """Return θ = 0, where training begins."""
        return torch.zeros(self.num_classes, self.inputs.shape[1], dtype=torch.float64)

    def norm_bound(self, radius: float) -> float:
        """Return an L that bounds all gradient norms where ‖θ‖ ≤ radius: √2 maxᵢ‖x̃ᵢ‖ + μ·radius, for ‖δ‖ ≤ √2."""
        radius = _checks.magnitude("radius", radius)
        return math.sqrt(2.0 * float(self._square_norms.max())) + self.penalty * radius

    def evaluate(self, params: Tensor, indices: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return losses and gradient norms of all samples, or of those that `indices` [K] names."""
        self._check_params("params", params)
        losses, norms, _ = self._parts(params, *self._rows(indices))
        return losses, norms

    def _check_params(self, name: str, params: Any) -> None:
        _checks.instance(name, params, Tensor, "a tensor")
        if params.shape != (shape := self.start().shape) or params.dtype != torch.float64:
            got = f"{params.dtype} of shape {tuple(params.shape)}"
            raise ValueError(f"`{name}` must be torch.float64 of shape {tuple(shape)}, got {got}.")

    def batch(self, params: Tensor, indices: Tensor, loss_weights: Tensor) -> Batch:
        """Return losses and norms of some samples, and the gradient of Σⱼ loss_weights[j]·ℓⱼ."""
        rows = self._rows(indices)
        losses, norms, residuals = self._parts(params, *rows)
        gradient = (residuals * loss_weights) @ rows[0]
        return Batch(losses, norms, gradient.add_(params, alpha=self.penalty * float(loss_weights.sum())))

    def _rows(self, indices: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if indices is None:
            return self.inputs, self.labels, self._square_norms
        return self.inputs[indices], self.labels[indices], self._square_norms[indices]

    def _parts(
        self, params: Tensor, inputs: Tensor, labels: Tensor, square_norms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses, gradient norms and the residuals δ, as [classes, samples]: that way round it is faster."""
        logits = params @ inputs.T
        log_probs = torch.log_softmax(logits, dim=0)
        own = labels[None]
        square = float(params.square().sum())
        losses = 0.5 * self.penalty * square - log_probs.gather(0, own).squeeze(0)
        residuals = log_probs.exp_()
        residuals.scatter_add_(0, own, torch.full_like(own, -1, dtype=residuals.dtype))
        squares = residuals.square().sum(dim=0) * square_norms
        squares += 2.0 * self.penalty * (residuals * logits).sum(dim=0) + self.penalty**2 * square
        return losses, squares.clamp_(min=0.0).sqrt_(), residuals

    def minimize(
        self, sample_weights: Tensor | None = None, *, start: Tensor | None = None, tolerance: float = 1e-8
    ) -> Minimum:
        """Return the minimizer of Σᵢ cᵢ ℓᵢ(θ), found by L-BFGS to a gradient norm of `tolerance`.

        Args:
            sample_weights: c [n], at or above 0, in all above 0; None: 1/n each, which makes it f.
            start: θ to start from; None: 0.
            tolerance: for the gradient of Σᵢ cᵢ ℓᵢ / Σᵢ cᵢ; at least 1e-13, because float64 cannot promise less.

        Raises:
            ValueError: An argument is out of its range.
            RuntimeError: The tolerance was not reached. Features far above 1, or a tiny penalty, leave larger
                rounding errors.
        """
        weights = self._weights(sample_weights)
        tolerance = _checks.real("tolerance", tolerance, low=_LEAST_TOLERANCE)
        if start is not None:
            self._check_params("start", start)
        total = float(weights.sum())
        scaled = weights * (_SCALE / total)
        params = (self.start() if start is None else start.clone()).requires_grad_()
        value, norm = self._value_and_gradient(params, scaled)
        for line_search, multiple, iterations in _PASSES:
            if norm > _SCALE * tolerance * multiple:
                # torch compares the largest entry, we the norm.
                entry = _SCALE * tolerance * multiple / math.sqrt(self.dimension)
                optimizer = LBFGS([params], max_iter=iterations, history_size=60, tolerance_grad=entry,
                                  tolerance_change=0.0, line_search_fn=line_search)  # fmt: skip
                optimizer.step(lambda: float(self._value_and_gradient(params, scaled)[0]))
                value, norm = self._value_and_gradient(params, scaled)
        norm /= _SCALE
        if not norm <= tolerance:
            raise RuntimeError(f"L-BFGS ended with a gradient norm of {norm:.1e}, above the tolerance {tolerance:.1e}.")
        return Minimum(params.detach(), float(value) * total / _SCALE, norm)

    def _weights(self, sample_weights: Any) -> Tensor:
        if sample_weights is None:
            return torch.full((self.num_samples,), 1.0 / self.num_samples, dtype=torch.float64)
        weights = torch.as_tensor(_checks.vector("sample_weights", sample_weights, length=self.num_samples))
        if not weights.sum() > 0.0:
            raise ValueError("`sample_weights` must not all be 0.")
        return weights

    def _value_and_gradient(self, params: Tensor, weights: Tensor) -> tuple[Tensor, float]:
        """Set the gradient of Σᵢ weights[i]·ℓᵢ on `params`; return the value and the gradient's norm."""
        with torch.no_grad():
            losses, _, residuals = self._parts(params, *self._rows(None))
            gradient = (residuals * weights) @ self.inputs
            gradient += self.penalty * weights.sum() * params
        params.grad = gradient
        return weights @ losses, float(gradient.norm())
