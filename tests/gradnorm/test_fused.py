"""Compiled loops that add up gradients and take their norms in one pass, against NumPy."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adamcb.gradnorm import PerSampleNorms, _fused
from adamcb.gradnorm._parts import add_up, form, sum_positions


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1, 7, _fused._BLOCK, 2 * _fused._BLOCK + 3])
@pytest.mark.parametrize("samples", [0, 1, 3, 4, 5, 9])  # four at a time, and what is left
def test_sum_and_norms_are_those_of_numpy(samples, size, dtype, generator):
    gradients = torch.randn(samples, size, generator=generator, dtype=torch.float64).to(dtype)
    before = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    exact = gradients.double().numpy()
    for first in (True, False):
        total, norms = before.clone(), torch.full((samples,), torch.nan, dtype=dtype)
        assert _fused.applies(gradients)
        _fused.add_up(gradients, total, norms, first=first)
        expected = exact.sum(0) + (0.0 if first else before.double().numpy())
        np.testing.assert_allclose(total.double().numpy(), expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(norms.double().numpy(), np.square(exact).sum(1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 1, 1), (5, 7, 9), (4, 1, 300)])
def test_sums_over_positions_are_those_of_numpy(shape, generator):
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    total, norms = _fused.sum_positions(rows)
    exact = rows.numpy().sum(1)
    np.testing.assert_allclose(total.numpy(), exact.sum(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(norms.numpy(), np.square(exact).sum(1), rtol=1e-12, atol=1e-12)


def test_what_is_not_finite_stays_in_its_sample():
    gradients = torch.ones(6, 5, dtype=torch.float64)
    gradients[1, 2], gradients[4, 0] = torch.nan, torch.inf
    total, norms = torch.empty(5, dtype=torch.float64), torch.empty(6, dtype=torch.float64)
    _fused.add_up(gradients, total, norms, first=True)
    assert norms.isnan().tolist() == [False, True, False, False, False, False]
    assert norms.isinf().tolist() == [False, False, False, False, True, False]
    assert total.isfinite().tolist() == [False, True, False, True, True]


def test_torch_adds_up_what_the_loops_cannot_read(monkeypatch, generator):
    """Other types, layouts, subclasses and many threads; and both ways give the same."""
    numbers = torch.randn(6, 4, 3, 5, generator=generator, dtype=torch.float64)
    assert not _fused.applies(numbers.transpose(0, 1))
    assert not _fused.applies(numbers.to(torch.bfloat16))
    assert not _fused.applies(torch.nn.Parameter(numbers))
    assert not _fused.applies(numbers, numbers.to("meta"))
    left, right = numbers[:, :1], torch.randn(6, 1, 3, 8, generator=generator, dtype=torch.float64)
    rows, total, norms = numbers.reshape(6, -1), torch.zeros(60, dtype=torch.float64), torch.empty(6).double()

    def everything() -> list[torch.Tensor]:
        add_up(rows, total.zero_(), norms, first=False)
        return [*form(left, right), *sum_positions(left.contiguous()), total.clone(), norms.clone()]

    compiled = everything()
    monkeypatch.setattr(torch, "get_num_threads", lambda: _fused._FEW_THREADS + 1)
    assert not _fused.applies(numbers)
    for one, other in zip(compiled, everything(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(4, 3), (5, 2, 7), (3, 4, 2, 5), (2, 1, 3, 2, 2)])
def test_products_and_moments_are_those_of_numpy(shape, dtype, generator):
    grads, inputs = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    g, x = (tensor.double().numpy().reshape(*shape[:2], -1) for tensor in (grads, inputs))
    expected = (g * x).sum(2), g.sum(2), x.mean(2), (x * x).mean(2)
    for one, other in zip(_fused.sum_products(grads, inputs), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-12, atol=1e-12)


NORMALIZED = {
    "batch": (nn.BatchNorm2d(4), lambda x: F.batch_norm(x, None, None, training=True)),
    "batch, evaluation": (nn.BatchNorm2d(4).eval(), lambda x: x / (1.0 + 1e-5) ** 0.5),
    "groups": (nn.GroupNorm(2, 4), lambda x: F.group_norm(x, 2)),
    "one group": (nn.GroupNorm(1, 4), lambda x: F.group_norm(x, 1)),
    "instances": (nn.InstanceNorm2d(4, affine=True), F.instance_norm),
}


@pytest.mark.parametrize("offset", [0.0, 1e6])  # at the second, sums of squares would lose the variance
@pytest.mark.parametrize("name", NORMALIZED)
def test_norms_of_scales_are_those_of_products_with_normalized_inputs(name, offset, generator):
    layer, normalize = NORMALIZED[name]
    layer = copy.deepcopy(layer).double()
    x = offset + torch.randn(6, 4, 3, 5, generator=generator, dtype=torch.float64)
    slopes = torch.randn(6, 4, 3, 5, generator=generator, dtype=torch.float64)
    norms = PerSampleNorms(layer, check="never")
    (layer(x) * slopes).sum().backward()
    expected = torch.hypot(*(part.sum((2, 3)).norm(dim=1) for part in (normalize(x) * slopes, slopes)))
    torch.testing.assert_close(norms.take(), expected, rtol=1e-8, atol=0.0)
