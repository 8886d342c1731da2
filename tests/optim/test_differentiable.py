"""Autograd runs through AdamX, and torch.compile through its step."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from adamcb.optim import AdamX

OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias_correction": True, "weight_decay": 0.1},
    {"beta1_decay": 0.9, "maximize": True},
]


def steps(options: dict[str, Any], param: Tensor, first: Tensor, second: Tensor, lr: Tensor) -> Tensor:
    param = param.clone()
    param.retain_grad()
    optimizer = AdamX([param], lr=lr, differentiable=True, **options)
    for grad in (first, second, first):
        param.grad = grad
        optimizer.step()
    return param


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_through_three_steps_are_right(options, generator):
    tensors = [torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(partial(steps, options), [*tensors, lr])


# The compiler imports parts of torch that warn.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")  # torch 2.8
@pytest.mark.parametrize(
    ("implementation", "graphs"), [({"foreach": False}, 1), ({"foreach": True}, 1), ({"fused": True}, 0)], ids=str
)
def test_a_compiled_step_is_one_graph_and_does_what_the_step_does(implementation, graphs, generator):
    options: dict[str, Any] = {"beta1_decay": 0.9, "bias_correction": True, "weight_decay": 0.1, **implementation}
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (4,))]
    results = []
    torch.compiler.reset()  # it remembers what other tests compiled
    counter = CompileCounterWithBackend("aot_eager")
    for wrap in (lambda step: step, torch.compile(backend=counter)):
        params = [tensor.clone().requires_grad_() for tensor in start]
        optimizer = AdamX(params, **options)
        step = wrap(optimizer.step)
        for t in range(4):
            for param in params:
                param.grad = torch.full_like(param, 1.0 / (t + 1))
            step()
        results.append(params)
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)
    assert counter.frame_count == graphs


def test_the_capturable_step_never_reads_from_the_device():
    param = torch.zeros(3, requires_grad=True)
    optimizer = AdamX([param], lr=torch.tensor(0.1), bias_correction=True, weight_decay=0.1, capturable=True)
    param.grad = torch.ones(3)
    optimizer.step()

    class NoReading(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor was read as a number"
            return func(*args, **(kwargs or {}))

    with NoReading():
        optimizer.step()
    assert optimizer.state[param]["step"] == 2
