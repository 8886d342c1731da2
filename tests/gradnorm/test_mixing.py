"""Operations that mix samples are refused, and those that only move them are followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_uses import numbers
from tests.reference.gradnorm import wave

K, D = 4, 5


class Model(nn.Module):
    """A function between two dense layers, and one of the inputs alone beside it.

    Two results want gradients, so a guard that looks at single results would not see exchanged samples.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.function, self.back = function, back
        self.layer, self.head, self.other = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.function(self.layer(inputs))
        return hidden if self.back is None else self.back(self.head(hidden)), self.other(inputs)


def losses_of(results: Any, size: int) -> Tensor:
    tensors = results if isinstance(results, tuple) else (results,)
    return torch.stack([wave(each, torch.arange(size)) for each in tensors]).sum(0)


def norms_of_losses(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the norms of K backward passes, one from each loss of the batch."""
    losses = losses_of(model(*inputs), len(inputs[0]))
    norms = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
        norms.append(sum(gradient.square().sum() for gradient in gradients if gradient is not None))
    return torch.stack([torch.as_tensor(norm) for norm in norms]).sqrt()


def norms_of_engine(model: nn.Module, *inputs: Tensor, check: str = "never") -> Tensor:
    with PerSampleNorms(model, check=check) as norms:
        losses_of(model(*inputs), len(inputs[0])).sum().backward()
        return norms.take()


def compare(model: nn.Module, *inputs: Tensor) -> None:
    expected = norms_of_losses(model, *inputs)
    for check in ("never", "always"):
        torch.testing.assert_close(norms_of_engine(model, *inputs, check=check), expected, rtol=1e-10, atol=1e-13)


def refuse(model: nn.Module, *inputs: Tensor) -> None:
    for check in ("never", "always"):
        with pytest.raises(RuntimeError, match="mixed|cannot be told apart"):
            norms_of_engine(model, *inputs, check=check)


class SumOfEarlier(torch.autograd.Function):
    """A custom function whose last operation mixes samples, with nothing after it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.cumsum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].flip(0).cumsum(0).flip(0)


def shift_in_place(hidden: Tensor) -> Tensor:
    moved = hidden.clone()
    moved[:-1].add_(hidden[1:])
    return moved


@pytest.mark.parametrize("function", [shift_in_place, SumOfEarlier.apply], ids=["in place", "custom function"])
def test_mixed_result_that_the_model_returns_is_refused(function):
    refuse(randomize(Model(function).double()), numbers(K, 3, D))
