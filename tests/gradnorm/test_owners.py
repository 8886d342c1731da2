"""Whose each row is: inputs that are sorted or folded before layers that know their batch dimension, and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_mixing import compare, norms_of_engine
from tests.gradnorm.test_uses import numbers

K, T, D = 4, 3, 6
LENGTHS = torch.tensor([2, 1, 3, 2])
ORDER = torch.tensor([2, 0, 3, 1])  # by length, the longest first


class Around(nn.Module):
    """A function of a layer that knows its batch dimension and of the inputs, then a dense head."""

    def __init__(self, layer: nn.Module, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.first, self.function = layer, nn.Linear(D, D), function
        self.head = nn.LazyLinear(2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.function(self, inputs))

    def run(self, inputs: Tensor) -> Tensor:
        """Return what the layer makes of its inputs."""
        attends = isinstance(self.inner, nn.MultiheadAttention)
        return (self.inner(inputs, inputs, inputs) if attends else self.inner(inputs))[0]


def made(layer: nn.Module, function: Callable[[Any, Tensor], Tensor], length: int = T) -> Around:
    model = Around(layer, function).double()
    model(numbers(K, length, D))
    return randomize(model)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "lstm": lambda **options: nn.LSTM(D, 3, **options),
    "lstm, both directions": lambda **options: nn.LSTM(D, 3, 2, bidirectional=True, **options),
    "gru": lambda **options: nn.GRU(D, 3, **options),
    "attention": lambda **options: nn.MultiheadAttention(D, 2, **options),
}

RIGHT: dict[str, tuple[bool, Callable[[Any, Tensor], Tensor]]] = {
    "sorted and unsorted": (True, lambda m, x: m.run(x[ORDER])[ORDER.argsort()]),
    "sorted behind a layer": (True, lambda m, x: m.run(m.first(x)[ORDER])[ORDER.argsort()]),
    "time first, sorted": (False, lambda m, x: m.run(x[ORDER].transpose(0, 1)).transpose(0, 1)[ORDER.argsort()]),
    "time first": (False, lambda m, x: m.run(x.transpose(0, 1)).transpose(0, 1)),
    "two views": (True, lambda m, x: torch.cat(m.run(torch.cat([x, x.flip(1) + 1])).chunk(2), -1)),
    "two views of each, side by side": (
        True,
        lambda m, x: m.run(torch.stack([x, x.flip(1) + 1], 1).flatten(0, 1)).unflatten(0, (-1, 2)).flatten(1, 2),
    ),
    "halves of each, behind a layer": (
        True,
        lambda m, x: m.run(m.first(x).repeat(1, 2, 1).reshape(2 * K, T, D)).reshape(K, 2 * T, -1),
    ),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", RIGHT)
def test_layers_keep_samples_where_they_are_known_to_be(layer, name):
    batch_first, function = RIGHT[name]
    compare(made(LAYERS[layer](batch_first=batch_first), function), numbers(K, T, D))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("length", [T, K])
@pytest.mark.parametrize("behind", [False, True])
def test_layers_along_the_batch_are_refused(layer, length, behind):
    """Without `batch_first=True` a layer takes the samples for time."""
    model = made(LAYERS[layer](), lambda m, x: m.run(m.first(x) if behind else x), length)
    for check in ("never", "always"):
        with pytest.raises(RuntimeError, match=r"takes dimension 1 .* it is dimension 0.*`batch_first=True`"):
            norms_of_engine(model, numbers(K, length, D), check=check)


def test_a_recurrent_layer_on_single_samples_is_refused():
    """Rows without their samples: one norm for four samples would be wrong."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(D, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            rows = [torch.from_numpy(row) for row in inputs.numpy()]
            return torch.stack([self.inner(row)[0] for row in rows])

    model = randomize(Rows().double())
    with pytest.raises(RuntimeError, match="inputs hold 4 samples, and no samples are known in that tensor"):
        norms_of_engine(model, numbers(K, T, D))


REORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted": lambda h: h[ORDER],
    "flipped": lambda h: h.flip(0),
    "gathered": lambda h: h.gather(0, ORDER.view(-1, 1, 1).expand(h.shape)),
    "time first, sorted": lambda h: h.transpose(0, 1)[:, ORDER],
    "rows of a mask, sorted": lambda h: h[ORDER][LENGTHS[ORDER, None] > torch.arange(T)],
}


@pytest.mark.parametrize("name", REORDERED)
def test_results_in_another_order_are_refused(name):
    """Losses come in the order of the result, and norms in that of the inputs."""
    model = nn.Sequential(nn.Linear(D, 2), Function(REORDERED[name]))
    with PerSampleNorms(randomize(model.double()), check="never") as norms:
        model(numbers(K, T, D)).square().sum().backward()
        with pytest.raises(RuntimeError, match="in another order than the inputs"):
            norms.take()


IN_ORDER: dict[str, Callable[[Tensor], Tensor]] = {
    "time first": lambda h: h.transpose(0, 1),
    "flattened": lambda h: h.reshape(-1, 2),
    "rows of a mask": lambda h: h[LENGTHS[:, None] > torch.arange(T)],
    "rows of a mask, time first": lambda h: h.transpose(0, 1)[LENGTHS > torch.arange(T)[:, None]],
    "rows of some": lambda h: h[[0, 2]],
    "a constant row": lambda h: torch.cat([torch.zeros_like(h[:1]), h[1:]]),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_results_in_order_are_measured(name):
    layer, function, x = randomize(nn.Linear(D, 2).double()), Function(IN_ORDER[name]), numbers(K, T, D)
    slopes = numbers(K, T, 2)
    expected = []
    for k in range(K):
        alone = (torch.arange(K) == k).view(-1, 1, 1)
        out = function(torch.where(alone, layer(x), layer(x).detach()))
        grads = torch.autograd.grad((function(slopes) * out).sum(), list(layer.parameters()))
        expected.append(torch.cat([grad.flatten() for grad in grads]).norm())
    model = nn.Sequential(layer, function)
    with PerSampleNorms(model, check="always") as norms:
        (function(slopes) * model(x)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=1e-13)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)
