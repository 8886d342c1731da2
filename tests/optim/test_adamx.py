"""AdamX computes Algorithm 1: against its slow twin, the paper's lemmas, torch's AMSGrad and itself."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from adamcb.optim import AdamX
from tests.reference.adamx import SlowAdamX

CASES = {
    "paper": {"bias_correction": False},
    "bias correction": {"bias_correction": True},
    "fast decay": {"beta1_decay": 0.9, "bias_correction": False},
    "decay faster than β₁": {"beta1_decay": 0.5, "bias_correction": True},
    "no decay": {"beta1_decay": 1.0, "bias_correction": False},
    "no momentum": {"betas": (0.0, 0.9), "bias_correction": True},
    "no memory": {"betas": (0.0, 0.0), "bias_correction": True},
    "weight decay": {"weight_decay": 0.1, "beta1_decay": 0.99, "bias_correction": False},
    "weight decay, corrected": {"weight_decay": 0.1, "bias_correction": True},
    "climbing": {"maximize": True, "weight_decay": 0.01, "lr": 0.05, "bias_correction": False},
    "large ε": {"eps": 0.1, "bias_correction": True},
    "rate 0": {"lr": 0.0, "weight_decay": 0.1, "bias_correction": False},
}
IMPLEMENTATIONS = {
    "default": {},
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "capturable foreach": {"capturable": True, "foreach": True},
    "differentiable": {"differentiable": True},
}
SHAPES = [(3, 2), (4,), (1,)]


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def settings(request) -> dict:
    return request.param


@pytest.fixture(params=list(IMPLEMENTATIONS.values()), ids=list(IMPLEMENTATIONS))
def implementation(request) -> dict:
    return request.param


def parameters(generator: torch.Generator, **options) -> list[Tensor]:
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [tensor.to(**options).requires_grad_() for tensor in tensors]


def gradients(generator: torch.Generator, t: int) -> list[Tensor]:
    # Sizes that rise and fall, so that now v and now what is left of the old v̂ is the larger.
    scale = 1.0 + 3.0 * math.sin(0.4 * t) ** 2
    return [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def step(optimizer: torch.optim.Optimizer, params: list[Tensor], grads: list[Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.to(param.dtype)
    with torch.no_grad():
        optimizer.step()


def flat(tensors) -> list[float]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def state(optimizer: torch.optim.Optimizer, params: list[Tensor], key: str) -> list[float]:
    return flat(optimizer.state[param][key] for param in params)


def close(expected, tolerance: float):
    return pytest.approx(expected, rel=tolerance, abs=tolerance)


def for_implementation(params: list[Tensor], implementation: dict) -> list[Tensor]:
    if not implementation.get("differentiable"):
        return params
    # Only parameters that are not leaves can be part of a graph and be changed in place.
    params = [param.clone() for param in params]
    for param in params:
        param.retain_grad()
    return params


def test_every_step_is_that_of_algorithm_1(settings, implementation, generator):
    params = for_implementation(parameters(generator), implementation)
    twin = SlowAdamX(flat(params), **settings)
    optimizer = AdamX(params, **settings, **implementation)
    for t in range(1, 41):
        grads = gradients(generator, t)
        step(optimizer, params, grads)
        twin.step(flat(grads))
        assert flat(params) == close(twin.theta, 1e-12)
        assert state(optimizer, params, "exp_avg") == close(twin.m, 1e-12)
        assert state(optimizer, params, "exp_avg_sq") == close(twin.v, 1e-12)
        assert state(optimizer, params, "max_exp_avg_sq") == close(twin.v_hat, 1e-12)
        assert state(optimizer, params, "step") == [t] * len(params)


def test_first_lemma_gives_v_hat_in_closed_form(settings, generator):
    params = parameters(generator)
    twin = SlowAdamX(flat(params), **settings)
    optimizer = AdamX(params, **settings)
    for t in range(1, 31):
        grads = gradients(generator, t)
        step(optimizer, params, grads)
        twin.step(flat(grads))
        assert state(optimizer, params, "max_exp_avg_sq") == close(twin.closed_form(), 1e-12)


def test_second_lemma_bounds_v_hat(settings, generator):
    params = parameters(generator)
    optimizer = AdamX(params, **settings)
    largest = 0.0  # ‖g_t‖ is at most L/γ in the paper
    for t in range(1, 31):
        grads = gradients(generator, t)
        largest = max(largest, math.sqrt(sum(g**2 for g in flat(grads))))
        step(optimizer, params, grads)
        bound = largest / (1 - optimizer.param_groups[0]["betas"][0])
        assert max(state(optimizer, params, "max_exp_avg_sq")) ** 0.5 <= bound


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
def test_it_is_amsgrad_with_constant_beta1_and_bias_correction(implementation, weight_decay, maximize, generator):
    ours = parameters(generator)
    theirs = [param.detach().clone().requires_grad_() for param in ours]
    ours = for_implementation(ours, implementation)
    common: dict[str, Any] = {"lr": 0.01, "weight_decay": weight_decay, "maximize": maximize}
    adamx = AdamX(ours, beta1_decay=1.0, bias_correction=True, **common, **implementation)
    amsgrad = torch.optim.AdamW(theirs, amsgrad=True, **common)
    for t in range(1, 41):
        grads = gradients(generator, t)
        step(adamx, ours, grads)
        step(amsgrad, theirs, grads)
        assert flat(ours) == close(flat(theirs), 1e-12)
        for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            assert state(adamx, ours, key) == close(state(amsgrad, theirs, key), 1e-12)


def test_parameters_with_other_step_counts_keep_their_own(implementation, generator):
    params = for_implementation(parameters(generator), implementation)
    twins = [SlowAdamX(flat([param]), beta1_decay=0.9) for param in params]
    optimizer = AdamX(params, beta1_decay=0.9, bias_correction=False, **implementation)
    for t in range(1, 13):
        grads: list[Tensor | None] = list(gradients(generator, t))
        grads[t % 3] = None
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        with torch.no_grad():
            optimizer.step()
        for twin, grad in zip(twins, grads, strict=True):
            if grad is not None:
                twin.step(flat([grad]))
    for param, twin in zip(params, twins, strict=True):
        assert flat([param]) == close(twin.theta, 1e-12)
        assert optimizer.state[param]["step"].item() == 8


@pytest.mark.parametrize("decay", [1 - 1e-8, 1 - 1e-9])
def test_float32_does_not_lose_the_growth_of_v_hat(implementation, decay):
    # 1 − λ is far below what float32 resolves, so a growth at every step would round to nothing or to too much.
    value = torch.linspace(1, 2, 100)
    param = for_implementation([value.clone().requires_grad_()], implementation)[0]
    optimizer = AdamX([param], lr=0.0, beta1_decay=decay, **implementation)
    param.grad = torch.zeros_like(param)
    with torch.no_grad():
        optimizer.step()
        optimizer.state[param]["max_exp_avg_sq"].copy_(value)
        for _ in range(999):
            optimizer.step()
    growth = optimizer.state[param]["max_exp_avg_sq"].double() / value.double() - 1
    exact = ((1 - 0.9 * decay**999) / 0.1) ** 2 - 1
    # Rounding to nearest loses up to half a unit of the 8 that come together, and the last growth may be 64 steps ago.
    assert growth.tolist() == pytest.approx([exact] * 100, rel=0.5 / 8 + 64 / 1000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_follows_float64(dtype, implementation, generator):
    exact = parameters(generator)
    coarse = [param.detach().to(dtype).requires_grad_() for param in exact]
    coarse = for_implementation(coarse, implementation)
    optimizers = AdamX(exact, lr=0.01, eps=1e-3), AdamX(coarse, lr=0.01, eps=1e-3, **implementation)
    for t in range(1, 9):
        grads = [grad.to(dtype) for grad in gradients(generator, t)]
        for optimizer, params in zip(optimizers, (exact, coarse), strict=True):
            step(optimizer, params, grads)
    assert all(param.dtype == dtype for param in coarse)
    assert flat(coarse) == pytest.approx(flat(exact), abs=8 * 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"capturable": True}], ids=str)
def test_complex_parameters_are_pairs_of_reals(options, generator):
    start = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    pairs = start.clone().requires_grad_()
    numbers = torch.view_as_complex(start.clone()).requires_grad_()
    settings: dict[str, Any] = {"beta1_decay": 0.9, "weight_decay": 0.1, "maximize": True}
    optimizers = AdamX([pairs], **settings), AdamX([numbers], **settings, **options)
    for _ in range(5):
        pairs.grad = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        numbers.grad = torch.view_as_complex(pairs.grad.clone())
        for optimizer in optimizers:
            optimizer.step()
    assert torch.view_as_real(numbers.detach()).equal(pairs.detach())
    assert optimizers[1].state[numbers]["max_exp_avg_sq"].is_complex()


@pytest.mark.parametrize("kind", ["channels last", "other gradient", "slice"])
def test_fused_is_right_for_every_memory_layout(kind, generator):
    base = torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64)
    grad = torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    results = []
    implementations: list[dict[str, Any]] = [{"foreach": False}, {"fused": True}]
    for options in implementations:
        memory = base.clone()
        values = memory[::2] if kind == "slice" else memory[:2].to(memory_format=torch.channels_last)
        param = torch.nn.Parameter(values)
        param.grad = grad.to(memory_format=torch.channels_last) if kind == "channels last" else grad.clone()
        optimizer = AdamX([param], **options)
        for _ in range(3):
            optimizer.step()
        results.append((memory, param.detach().clone(), optimizer.state[param]["max_exp_avg_sq"]))
    for looped, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, looped, rtol=1e-12, atol=1e-12)


def test_foreach_reaches_every_parameter_of_a_large_model(generator):
    sizes = (10, 70_000, 20, 60_000, 30, 40, 70_000)
    start = [torch.randn(size, generator=generator) for size in sizes]
    grads = [torch.randn(size, generator=generator) for size in sizes]
    results = []
    for foreach in (False, True):
        params = [tensor.clone().requires_grad_() for tensor in start]
        optimizer = AdamX(params, foreach=foreach)
        for _ in range(2):
            step(optimizer, params, grads)
        results.append(params)
    assert all(looped.equal(listed) for looped, listed in zip(*results, strict=True))
