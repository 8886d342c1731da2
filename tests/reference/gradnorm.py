"""Slow twins of `adamcb.gradnorm`: per-sample gradients by the book."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
"""From a result [K, ...] and the numbers of the samples [K] to losses [K]."""


def wave(result: Tensor, numbers: Tensor) -> Tensor:
    """Return one loss for each sample that depends on every entry of its result, and on which sample it is."""
    flat = result.flatten(1)
    phases = torch.arange(flat.shape[1], dtype=flat.dtype, device=flat.device)
    return torch.sin(1.3 * flat + 0.7 * phases + numbers.to(flat.dtype).unsqueeze(1)).sum(1)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by name, each once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def norms_by_vmap(model: nn.Module, inputs: Tensor, loss: Loss = wave) -> Tensor:
    """Return the norms of `torch.func.vmap(grad)`, each sample as a batch of its own."""
    parameters = trainable(model)

    def one(values: dict[str, Tensor], sample: Tensor, number: Tensor) -> Tensor:
        result = torch.func.functional_call(model, values, (sample.unsqueeze(0),), tie_weights=True)
        return loss(first(result), number.unsqueeze(0)).sum()

    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(
        {name: value.detach() for name, value in parameters.items()}, inputs, torch.arange(len(inputs))
    )
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


def norms_one_by_one(model: nn.Module, inputs: Tensor, loss: Loss = wave) -> Tensor:
    """Return the norms of K single backward passes, each on a batch of one."""
    parameters = list(trainable(model).values())
    norms = []
    for number in range(len(inputs)):
        result = first(model(inputs[number : number + 1]))
        gradients = torch.autograd.grad(loss(result, torch.tensor([number])).sum(), parameters, allow_unused=True)
        norms.append(sum(g.to_dense().square().sum() for g in gradients if g is not None))
    return torch.stack([torch.as_tensor(norm) for norm in norms]).sqrt()


def norms_by_backward(model: nn.Module, inputs: Tensor, loss: Loss = wave) -> Tensor:
    """Return the same with `backward()`, for models that `torch.autograd.grad` cannot go through."""
    norms = []
    for number in range(len(inputs)):
        model.zero_grad()
        loss(first(model(inputs[number : number + 1])), torch.tensor([number])).sum().backward()
        norms.append(sum(p.grad.square().sum() for p in trainable(model).values() if p.grad is not None))
    model.zero_grad()
    return torch.stack([torch.as_tensor(norm) for norm in norms]).sqrt()


def batch_gradients(model: nn.Module, inputs: Tensor, weights: Tensor, loss: Loss = wave) -> dict[str, Tensor]:
    """Return the gradient of Σ weightⱼ·lossⱼ by name, zeros where there is none."""
    parameters = trainable(model)
    model.zero_grad()
    (weights * loss(first(model(inputs)), torch.arange(len(inputs)))).sum().backward()
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in parameters.items()}
    model.zero_grad()
    return gradients


def first(result: Tensor | tuple) -> Tensor:
    """Return the result itself, or the first of several."""
    return result[0] if isinstance(result, tuple) else result
