"""Results that are changed in place: torch makes some of them as views, whose nodes in the graph do not stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, measured, randomize
from tests.gradnorm.test_uses import Formula, numbers
from tests.reference.gradnorm import norms_one_by_one, wave


def dense(m: Any, x: Tensor) -> Tensor:
    """Return what torch gives as a view, and the engine observes without forming gradients."""
    return F.linear(x, m.a, m.b)


def residual(m: Any, x: Tensor) -> Tensor:
    result = dense(m, x)
    result += x
    return result.tanh()


def instance_norm(m: Any, x: Tensor) -> Tensor:
    return F.instance_norm(x, weight=m.c[: x.shape[1]]).relu_()


FOLLOWED = {
    "relu": lambda m, x: dense(m, x).relu_(),
    "twice": lambda m, x: dense(m, x).mul_(2.0).sigmoid_(),
    "added": residual,
    "part of it": lambda m, x: _changed(dense(m, x), lambda y: y[:, :1].mul_(3.0)),
    "seen otherwise": lambda m, x: _changed(dense(m, x), lambda y: y.transpose(0, 1).tanh_()),
    "summed": lambda m, x: dense(m, x).relu_().sum(1),
    "joined to another": lambda m, x: torch.cat([x, dense(m, x)]).chunk(2)[1],
    "another layer": lambda m, x: dense(m, dense(m, x).relu_()).relu_(),
    "instance norm": instance_norm,
    "bilinear": lambda m, x: F.bilinear(x, x, m.d).relu_(),
    "tensordot": lambda m, x: torch.tensordot(x, m.a, 1).sigmoid_(),
}


def _changed(tensor: Tensor, change) -> Tensor:
    change(tensor)
    return tensor


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("name", FOLLOWED)
def test_operation_in_place_after_a_layer(name, length):
    model = Formula(FOLLOWED[name], a=(24, 24), b=(24,), c=(2,), d=(3, 24, 24))
    check(randomize(model.double()), numbers(5, length, 24), norms_one_by_one)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    "equation",
    [
        *("btd,de->bte", "btd,de->bet", "btd,de->teb", "btd,de->dbt", "btd,te->deb", "btd,te->bed"),
        *("btd,tde->bte", "btd,tde->ebd", "btd,tde->bt"),
    ],
)
def test_einsum_in_any_order_of_dimensions(equation, in_place):
    result = equation[-3:].strip(">-")
    sizes = {"t": 4, "d": 3, "e": 2}

    def formula(m, x):
        product = torch.einsum(equation, x, m.a)
        return (product.mul_(2.0).sigmoid_() if in_place else product).movedim(result.index("b"), 0)

    model = Formula(formula, a=[sizes[letter] for letter in equation.split("->")[0].split(",")[1]])
    check(randomize(model.double()), numbers(5, 4, 3), norms_one_by_one)


def test_modules_that_work_in_place():
    model = nn.Sequential(nn.Linear(24, 24), nn.ReLU(inplace=True), nn.Linear(24, 24), nn.SiLU(inplace=True))
    check(randomize(model.double()), numbers(5, 2, 24), norms_one_by_one)


def test_dropout_in_place():
    def formula(m, x):
        torch.manual_seed(1)
        return F.dropout(dense(m, x), 0.5, training=True, inplace=True).tanh()

    def contributions(model: nn.Module, inputs: Tensor) -> Tensor:
        """Return norms from the batch as a whole: a batch of one would draw other numbers."""
        losses, parameters = wave(model(inputs), torch.arange(len(inputs))), list(model.parameters())
        gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        return torch.stack([torch.cat([g.flatten() for g in each]).norm() for each in gradients])

    check(randomize(Formula(formula, a=(24, 24), b=(24,)).double()), numbers(5, 2, 24), contributions)


def test_hooks_on_a_view_come_first():
    def formula(m, x):
        result = dense(m, x)
        result.register_hook(lambda grad: m.factor * grad)
        return result

    model: Any = randomize(Formula(formula, a=(24, 24), b=(24,)).double())
    model.factor = 1.0
    plain = measured(model, numbers(5, 2, 24))
    model.factor = 3.0
    torch.testing.assert_close(measured(model, numbers(5, 2, 24)), 3.0 * plain, rtol=1e-12, atol=0.0)


def test_create_graph_goes_through_a_view():
    model, inputs = randomize(Formula(FOLLOWED["relu"], a=(24, 24), b=(24,)).double()), numbers(5, 2, 24)
    with PerSampleNorms(model) as norms:
        loss = wave(model(inputs), torch.arange(5)).sum()
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        taken = norms.take()
    assert not taken.requires_grad
    torch.testing.assert_close(taken, norms_one_by_one(model, inputs), rtol=1e-10, atol=0.0)


JOINED = {
    "part": lambda m, x: _changed(x.tanh(), lambda y: y[:, 0].add_(m.b)),
    "part, assigned": lambda m, x: _assigned(x.tanh(), m.b),
    "reshaped": lambda m, x: _changed(x.tanh(), lambda y: y.view(len(x), -1, 2, 12).mul_(m.c)),
    "result of a layer": lambda m, x: dense(m, x).mul_(m.b),
    "twice": lambda m, x: _changed(_changed(dense(m, x), lambda y: y[:, 0].add_(m.b)), lambda y: y[:, -1].mul_(m.b)),
}


def _assigned(tensor: Tensor, bias: Tensor) -> Tensor:
    tensor[:, 0] += bias
    return tensor


@pytest.mark.parametrize("positions", [1, 2, 7])
@pytest.mark.parametrize("name", JOINED)
def test_parameter_may_be_joined_in_place_to_a_view(name, positions):
    model = randomize(Formula(JOINED[name], a=(24, 24), b=(24,), c=(2, 1)).double())
    check(model, numbers(5, positions, 24), norms_one_by_one)


def test_frozen_parameter_may_be_joined_in_place_to_a_view():
    model = randomize(Formula(JOINED["result of a layer"], a=(24, 24), b=(24,)).double())
    model.get_parameter("b").requires_grad_(False)
    check(model, numbers(5, 2, 24), norms_one_by_one)
