"""Runs a model with the engine and compares with the slow twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.reference.gradnorm import batch_gradients, first, norms_by_vmap, trainable, wave

Model = TypeVar("Model", bound=nn.Module)


def weights_for(inputs: Tensor) -> Tensor:
    """Return positive weights that differ from sample to sample."""
    return torch.linspace(0.4, 2.3, len(inputs), dtype=torch.float64)


def measured(model: nn.Module, inputs: Tensor, loss: Callable = wave, check: str = "never") -> Tensor:
    """Return the engine's norms, leaving the gradients of the weighted loss in `param.grad`."""
    weights = weights_for(inputs)
    model.zero_grad()
    with PerSampleNorms(model, check=check) as norms:
        losses = loss(first(model(inputs)), torch.arange(len(inputs)))
        (weights * losses).sum().backward()
        return norms.take() / weights


def check(model: nn.Module, inputs: Tensor, reference: Callable = norms_by_vmap) -> None:
    """Compare norms at 1e-10 and `param.grad` at 1e-12, relative, in float64."""
    model = model.double()
    expected = reference(model, inputs)
    plain = batch_gradients(model, inputs, weights_for(inputs))
    # A checked pass takes other ways than most: autograd computes all gradients.
    for how in ("always", "never"):
        norms = measured(model, inputs, check=how)
        torch.testing.assert_close(norms, expected, rtol=1e-10, atol=1e-13)
    largest = max((float(g.abs().max()) for g in plain.values() if g.numel()), default=0.0)
    for name, parameter in trainable(model).items():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
        torch.testing.assert_close(grad, plain[name], rtol=1e-12, atol=1e-12 * largest, msg=f"gradient of {name}")


def randomize(model: Model, seed: int = 0) -> Model:
    """Return the model with every parameter drawn anew: ones and zeros hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model
