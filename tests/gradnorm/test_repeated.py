"""A parameter used twice in one operation, and what may not be taken apart or walked into. K = 4, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, measured, randomize
from tests.gradnorm.test_hidden import D, K, T, model
from tests.gradnorm.test_uses import numbers
from tests.reference.gradnorm import norms_one_by_one, wave


def _attended(m: Any, x: Tensor) -> Tensor:
    keys, values = (m.a * scale for scale in (1.0, 2.0))
    memory = [side.expand(len(x), -1, -1) for side in (keys, values)]
    return F.scaled_dot_product_attention(m.layer(x), *memory)


TWICE: dict[str, tuple[Any, dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "cat, both ends": (lambda m, x: m.head(_cat_twice(m, x)), {"a": (D,)}, (T, D)),
    "where": (lambda m, x: torch.where(x > 0, m.a, 2 * m.a) * m.layer(x), {"a": (D,)}, (T, D)),
    "linear, its bias made of its weight": (lambda m, x: F.linear(x, m.a, m.a.sum(1)), {"a": (D, D)}, (T, D)),
    "layer_norm": (lambda m, x: F.layer_norm(m.layer(x), (D,), 1 + m.a, m.a), {"a": (D,)}, (T, D)),
    "clamp": (lambda m, x: torch.clamp(m.layer(x), m.a, m.a + 1), {"a": (D,)}, (T, D)),
    "addmm": (lambda m, x: torch.addmm(m.a[0], m.layer(x), m.a), {"a": (D, D)}, (D,)),
    "conv1d": (lambda m, x: F.conv1d(x, m.a, m.a.sum((1, 2)), padding=1), {"a": (2, T, 3)}, (T, D)),
    "einsum of three": (lambda m, x: torch.einsum("i,kij,j->kij", m.a[0], x, m.a[1]), {"a": (2, 4)}, (4, 4)),
    "attention to one memory": (_attended, {"a": (T, D)}, (T, D)),
}


def _cat_twice(m: Any, x: Tensor) -> Tensor:
    token = m.a.expand(len(x), 1, -1)
    return torch.cat([token, m.layer(x), token], 1)


@pytest.mark.parametrize("case", TWICE)
def test_a_parameter_used_twice_in_one_operation_has_its_cross_terms(case):
    formula, shapes, size = TWICE[case]
    check(model(formula, **shapes), numbers(K, *size), norms_one_by_one)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("checks", ["always", "never"])
def test_a_recurrent_layer_in_a_checkpoint_trains_as_it_would_and_is_refused(kind, checks):
    """Taken apart, it would save other tensors than the checkpoint recomputes: gradients would be wrong."""

    def net(reentrant: bool) -> nn.Module:
        def formula(m: Any, x: Tensor) -> Tensor:
            return m.head(checkpoint(lambda h: m.layer(h)[0], m.first(x), use_reentrant=reentrant))

        made: Any = model(formula)
        made.first, made.layer = nn.Linear(D, D), kind(D, D, batch_first=True)
        return randomize(made.double())

    x, plain = numbers(K, T, D), net(False)
    wave(plain(x), torch.arange(K)).sum().backward()
    watched = net(False)
    with PerSampleNorms(watched, check=checks) as norms:
        wave(watched(x), torch.arange(K)).sum().backward()
        with pytest.raises(RuntimeError, match="a recurrent layer inside a checkpoint cannot be measured"):
            norms.take()
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(measured(net(True), x, check=checks), norms_one_by_one(net(False), x))


@pytest.mark.parametrize("kind", [nn.Softmax, nn.LogSoftmax])
def test_a_sequence_with_a_softmax_over_the_batch_is_refused(kind):
    net = randomize(nn.Sequential(nn.Linear(D, D), kind(dim=0)).double())
    with pytest.raises(RuntimeError, match="samples are mixed|cannot be told apart"):
        measured(net, numbers(K, D))


def test_a_sequence_behind_another_model_is_measured_alone():
    before = randomize(nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D), nn.Linear(D, D)).double())
    net = randomize(nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 2)).double())
    check(net, torch.tanh(before(numbers(K, D))).detach(), norms_one_by_one)
    expected = norms_one_by_one(net, torch.tanh(before(numbers(K, D))).detach())
    for how in ("always", "never"):
        torch.testing.assert_close(measured(net, torch.tanh(before(numbers(K, D))), check=how), expected)


class Two(torch.autograd.Function):
    """x · w and x + w."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, *grads):
        x, w = ctx.saved_tensors
        product, total = grads
        return product * w + total, (product * x + total).sum((0, 1))


def _two_results(m: Any, x: Tensor) -> Tensor:
    product, total = Two.apply(m.layer(x), m.a)  # type: ignore[misc]
    return product + total.sin()


def _in_a_checkpoint(m: Any, x: Tensor) -> Tensor:
    return m.head(checkpoint(lambda h: _two_results(m, h), x, use_reentrant=False))


@pytest.mark.parametrize("formula", [_two_results, _in_a_checkpoint])
@pytest.mark.parametrize("checks", ["always", "never"])
def test_a_custom_function_with_two_results_is_refused_and_trains(formula, checks):
    x, plain, watched = numbers(K, T, D), model(formula, a=(D,)), model(formula, a=(D,))
    wave(plain(x), torch.arange(K)).sum().backward()
    with PerSampleNorms(watched, check=checks) as norms:
        wave(watched(x), torch.arange(K)).sum().backward()
        with pytest.raises(RuntimeError, match="custom autograd function of parameters, (has several|stands in)"):
            norms.take()
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
