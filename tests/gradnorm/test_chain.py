"""Plain sequences of dense layers, whose graph is read after the forward pass, and what may change between passes."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, randomize
from tests.reference.gradnorm import norms_one_by_one, wave

MODES = ("exact", "last-layer")


def chain(width: int = 4) -> nn.Sequential:
    layers = (nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width, bias=False), nn.Tanh(), nn.Linear(width, 2))
    return randomize(nn.Sequential(*layers).double())


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def taken(norms: PerSampleNorms, model: nn.Module, inputs: Tensor) -> Tensor:
    wave(model(inputs), torch.arange(len(inputs))).sum().backward()
    return norms.take()


@pytest.mark.parametrize("size", [1, 7])
def test_chain(size):
    check(chain(), numbers(size, 3), norms_one_by_one)


def test_single_layer():
    check(nn.Sequential(nn.Linear(3, 2)), numbers(5, 3), norms_one_by_one)


@pytest.mark.parametrize("frozen", [("0.weight",), ("0.bias",), ("2.weight",), ("4.weight", "4.bias"), ("4.bias",)])
def test_frozen_parameters_of_a_chain_do_not_count(frozen):
    model = chain()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    check(model, numbers(5, 3), norms_one_by_one)


def test_layers_of_a_large_chain_do_not_wait_for_one_another():
    model, inputs = chain(width=600), numbers(1100, 3)
    squares, hidden = torch.zeros(1100, dtype=torch.float64), inputs
    with PerSampleNorms(model) as norms:
        result = taken(norms, model, inputs)
    activations = [hidden := module(hidden) for module in model]
    grads = torch.autograd.grad(wave(hidden, torch.arange(1100)).sum(), [activations[i] for i in (0, 2, 4)])
    for grad, before, bias in zip(grads, (inputs, activations[1], activations[3]), (1.0, 0.0, 1.0), strict=True):
        squares += grad.square().sum(1) * (before.square().sum(1) + bias)
    torch.testing.assert_close(result, squares.sqrt(), rtol=1e-10, atol=0.0)


def test_changes_between_passes_are_noticed():
    model = chain()
    with PerSampleNorms(model) as norms:
        for change in (
            lambda: None,
            lambda: model[0].requires_grad_(False),
            lambda: model[0].requires_grad_(True),
            lambda: setattr(model[4], "bias", None),
            lambda: setattr(model[2], "weight", nn.Parameter(model.get_parameter("2.weight").detach() + 1.0)),
            lambda: model.append(nn.Softsign()),
            lambda: model.pop(5),
            lambda: setattr(model[2], "bias", model[0].bias),
        ):
            change()
            for size in (5, 3):
                expected = norms_one_by_one(copy.deepcopy(model), numbers(size, 3))
                torch.testing.assert_close(taken(norms, model, numbers(size, 3)), expected, rtol=1e-10, atol=0.0)


def _square(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * output


def test_hook_on_a_layer_is_obeyed():
    model = chain()
    inputs = numbers(5, 3)
    with PerSampleNorms(model) as norms:
        taken(norms, model, inputs)
        model[1].register_forward_hook(_square)
        expected = norms_one_by_one(copy.deepcopy(model), inputs)
        torch.testing.assert_close(taken(norms, model, inputs), expected, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_type_may_change_between_passes(dtype):
    model, inputs = chain(), numbers(5, 3)
    with PerSampleNorms(model) as norms:
        expected = taken(norms, model, inputs)
        result = taken(norms, model.to(dtype), inputs.to(dtype))
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(result.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_taken_norms_stay_as_they_are(mode):
    model = chain()
    with PerSampleNorms(model, mode=mode) as norms:
        first = taken(norms, model, numbers(5, 3))
        kept = first.clone()
        taken(norms, model, 2.0 * numbers(5, 3))
        assert torch.equal(first, kept)


def test_backward_to_some_parameters_counts_the_layers_that_it_reached():
    model, inputs = chain(), numbers(5, 3)
    last = copy.deepcopy(model)
    last[:4].requires_grad_(False)
    with PerSampleNorms(model) as norms:
        wave(model(inputs), torch.arange(5)).sum().backward(inputs=[model[4].weight, model[4].bias])
        torch.testing.assert_close(norms.take(), norms_one_by_one(last, inputs), rtol=1e-10, atol=0.0)


class NoGradient(torch.autograd.Function):
    """Passes nothing back."""

    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, *grads):
        return None


@pytest.mark.parametrize("middle", [nn.ReLU(), nn.Softsign()], ids=["chain", "watched"])
@pytest.mark.parametrize("mode", MODES)
def test_gradient_that_is_not_defined_disturbs_nothing(mode, middle):
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2)).double()
    with PerSampleNorms(model, mode=mode) as norms:
        NoGradient.apply(model(numbers(5, 3))).sum().backward()
        with pytest.raises(RuntimeError, match=r"no gradient reached|none has happened"):
            norms.take()


@pytest.mark.parametrize("middle", [nn.ReLU(), nn.Softsign()], ids=["chain", "watched"])
@pytest.mark.parametrize("mode", MODES)
def test_hooks_on_the_result_come_first(mode, middle):
    model = randomize(nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2)).double())
    result = []
    with PerSampleNorms(model, mode=mode) as norms:
        for factor in (1.0, 3.0):
            output = model(numbers(5, 3))
            output.register_hook(lambda grad, factor=factor: factor * grad)
            output.sum().backward()
            result.append(norms.take())
    torch.testing.assert_close(result[1], 3.0 * result[0], rtol=1e-12, atol=0.0)


class Witness:
    """Lives as long as the node of the graph that holds it."""

    def __call__(self, *grads: object) -> None:
        pass


@pytest.mark.parametrize("mode", MODES)
def test_forward_pass_that_never_goes_backward_is_let_go(mode):
    model, witness = chain(), Witness()
    gone = weakref.ref(witness)
    gc.disable()
    try:
        with PerSampleNorms(model, mode=mode):
            output = model(numbers(5, 3))
            first: Any = output.grad_fn
            for _ in range(4):  # down to the first layer
                first = first.next_functions[-2 if len(first.next_functions) > 1 else 0][0]
            first.register_hook(witness)
            del witness, first
            assert gone() is not None
            del output
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("other", MODES)
def test_second_engine_is_refused_in_every_mode(mode, other):
    model = chain()
    with PerSampleNorms(model, mode=mode), pytest.raises(RuntimeError, match="still measures"):
        PerSampleNorms(model, mode=other)


def test_create_graph_goes_through_a_chain():
    model, inputs = chain(), numbers(5, 3)
    with PerSampleNorms(model) as norms:
        loss = wave(model(inputs), torch.arange(5)).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        result = norms.take()
        assert all(grad.requires_grad for grad in grads)
        assert not result.requires_grad
        torch.testing.assert_close(result, norms_one_by_one(model, inputs), rtol=1e-10, atol=0.0)


def images_chain(*, groups: int = 1) -> nn.Sequential:
    layers = (nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2, stride=2, groups=groups))
    rest = (nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3))
    return randomize(nn.Sequential(*layers, *rest).double())


@pytest.fixture
def untraced(monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this model should not be traced")

    monkeypatch.setattr("adamcb.gradnorm._watch.Tracer", refuse)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.usefixtures("untraced")
def test_chain_of_convolutions(size, groups):
    check(images_chain(groups=groups), numbers(size, 2, 8, 8), norms_one_by_one)


@pytest.mark.parametrize("frozen", [("0.weight",), ("0.bias",), ("3.weight", "3.bias"), ("3.weight",), ("7.weight",)])
@pytest.mark.usefixtures("untraced")
def test_frozen_parameters_of_a_chain_of_convolutions_do_not_count(frozen):
    model = images_chain()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    check(model, numbers(5, 2, 8, 8), norms_one_by_one)


@pytest.mark.usefixtures("untraced")
def test_odd_convolutions_in_a_chain():
    layers = (nn.Conv2d(2, 3, (1, 3), padding="same"), nn.SiLU(), nn.Conv2d(3, 3, 3, dilation=2, bias=False))
    check(randomize(nn.Sequential(*layers).double()), numbers(4, 2, 7, 6), norms_one_by_one)


class Traced(Exception):
    """Raised in place of tracing."""


@pytest.mark.parametrize(
    "layers",
    [
        lambda: (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Linear(6, 3)),
        lambda: (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(256, 3)),
        lambda: (nn.Linear(8, 8), nn.Conv2d(2, 4, 3)),
        lambda: (nn.ReLU(), nn.Conv2d(2, 4, 3)),
        lambda: (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)),
    ],
    ids=["not flattened", "circular", "dense first", "activation first", "norm layer"],
)
def test_what_is_no_chain_of_convolutions_is_traced(layers, monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Traced

    monkeypatch.setattr("adamcb.gradnorm._watch.Tracer", refuse)
    model = nn.Sequential(*layers()).double()
    with PerSampleNorms(model), pytest.raises(Traced):
        model(numbers(4, 2, 8, 8))


def test_large_convolutions_are_traced_from_the_second_pass(monkeypatch):
    monkeypatch.setattr("adamcb.gradnorm._chain._FEW_PRODUCTS", 100)
    model, inputs = images_chain(), numbers(5, 2, 8, 8)
    with PerSampleNorms(model) as norms:
        first = taken(norms, model, inputs)

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise Traced

        with monkeypatch.context() as patch:
            patch.setattr("adamcb.gradnorm._watch.Tracer", refuse)
            with pytest.raises(Traced):
                model(inputs)
        norms.clear()
        torch.testing.assert_close(taken(norms, model, inputs), first, rtol=1e-10, atol=0.0)


def test_broken_shortcut_for_convolutions_is_found_out(monkeypatch):
    from adamcb.gradnorm import _compat

    sound = _compat.saved_convolution

    def broken(node: Any) -> Any:
        inputs, *rest = sound(node)
        return inputs.roll(1, 0), *rest

    monkeypatch.setattr(_compat, "saved_convolution", broken)
    model = images_chain()
    with PerSampleNorms(model) as norms:
        wave(model(numbers(5, 2, 8, 8)), torch.arange(5)).sum().backward()
        with pytest.raises(RuntimeError, match="`3.weight`.*its parts do not sum to its gradient"):
            norms.take()
