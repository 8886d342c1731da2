"""How the engine attaches, what it gives back, and what it says when it cannot."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.reference.gradnorm import norms_one_by_one, wave

INPUTS = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    return randomize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())


def backward(model: nn.Module, inputs: torch.Tensor = INPUTS, scale: float = 1.0) -> None:
    (scale * wave(model(inputs), torch.arange(len(inputs)))).sum().backward()


def test_norms_are_float32_for_float32_models():
    model = network().float()
    with PerSampleNorms(model) as norms:
        backward(model, INPUTS.float())
        taken = norms.take()
    assert taken.dtype == torch.float32
    assert not taken.requires_grad
    torch.testing.assert_close(taken.double(), norms_one_by_one(model.double(), INPUTS), rtol=1e-5, atol=0.0)


def test_take_needs_a_backward_pass():
    model = network()
    with PerSampleNorms(model) as norms:
        with pytest.raises(RuntimeError, match="must follow a backward pass"):
            norms.take()
        model(INPUTS)
        with pytest.raises(RuntimeError, match="must follow a backward pass"):
            norms.take()
        backward(model)
        norms.take()
        with pytest.raises(RuntimeError, match="must follow a backward pass"):
            norms.take()


def test_what_is_cleared_is_not_taken():
    model = network()
    with PerSampleNorms(model) as norms:
        backward(model)
        norms.clear()
        with pytest.raises(RuntimeError, match="must follow a backward pass"):
            norms.take()
        backward(model)
        assert len(norms.take()) == len(INPUTS)


def test_mode_and_model_are_checked():
    with pytest.raises(ValueError, match="`mode` must be one of 'exact', 'last-layer', got mode='fast'"):
        PerSampleNorms(network(), mode="fast")
    with pytest.raises(ValueError, match="`check` must be one of 'auto', 'always', 'never', got check='often'"):
        PerSampleNorms(network(), check="often")
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module, got model of type function"):
        PerSampleNorms(backward)  # type: ignore[arg-type]


def test_two_engines_on_one_model_are_refused_and_the_first_goes_on():
    model = network()
    with PerSampleNorms(model) as norms:
        for other, measured in ((model, "the model itself"), (nn.Sequential(model), "0")):
            with pytest.raises(RuntimeError, match=rf"still measures {measured}\."):
                PerSampleNorms(other)
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)
    PerSampleNorms(model).close()


def test_engine_inside_a_measured_model_is_refused_when_it_runs():
    model = nn.Sequential(network())
    with PerSampleNorms(model) as norms:
        inner = PerSampleNorms(model[0])
        with pytest.raises(RuntimeError, match="part of another model"):
            model(INPUTS)
        inner.close()
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


def test_closing_leaves_no_trace():
    model = network()
    before = pickle.dumps(model)
    norms = PerSampleNorms(model)
    backward(model)
    norms.take()
    norms.close()
    norms.close()
    model.zero_grad()
    assert pickle.dumps(model) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not _get_current_function_mode_stack()


def test_nothing_is_stored_on_modules_or_parameters_while_attached():
    model = network()
    modules = {name: set(vars(module)) for name, module in model.named_modules()}
    with PerSampleNorms(model):
        backward(model)
        assert {name: set(vars(module)) for name, module in model.named_modules()} == modules
        assert all(not vars(parameter) for parameter in model.parameters())
        assert all(not module._forward_hooks for module in model.children())


@pytest.mark.parametrize(("kind", "sizes"), [(nn.Linear, (8, 8)), (nn.Conv1d, (2, 2, 1))], ids=["observed", "formed"])
def test_activations_are_let_go_when_autograd_lets_go(kind, sizes):
    seen = []
    layer = kind(*sizes)
    model = nn.Sequential(nn.Softsign(), nn.Unflatten(1, (2, 8)), layer, nn.Flatten(), nn.Linear(16, 2))
    model[1].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(output)))
    gc.disable()
    try:
        with PerSampleNorms(model) as norms:
            loss = model(torch.randn(3, 16, requires_grad=True)).sum()
            loss.backward()
            assert seen[0]() is None
            norms.take()
    finally:
        gc.enable()


def test_copies_and_pickles_work_and_stay_without_the_engine():
    model = network()
    with PerSampleNorms(model) as norms:
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
        for other in copies:
            backward(other)
            assert torch.equal(other(INPUTS), model(INPUTS))
            with PerSampleNorms(other) as others:
                backward(other)
                assert len(others.take()) == 5
        with pytest.raises(RuntimeError, match="none has happened"):
            norms.take()
        assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


def test_no_grad_and_inference_are_inert():
    model = network()
    with PerSampleNorms(model) as norms:
        for guard in (torch.no_grad(), torch.inference_mode()):
            with guard:
                model.register_forward_pre_hook(lambda *_: _assert_no_mode())
                model(INPUTS)
        model._forward_pre_hooks.popitem()
        model._forward_pre_hooks.popitem()
        with pytest.raises(RuntimeError, match="none has happened"):
            norms.take()


def _assert_no_mode() -> None:
    assert not _get_current_function_mode_stack()


def test_evaluation_mode_measures_too():
    model = randomize(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double())
    model.eval()
    with PerSampleNorms(model) as norms:
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


def test_accumulation_gives_norms_after_each_backward_or_once_for_all():
    model = network()
    expected = norms_one_by_one(model, INPUTS)
    with PerSampleNorms(model) as norms:
        backward(model, scale=0.5)
        first = norms.take()
        backward(model, scale=0.5)
        torch.testing.assert_close(first, 0.5 * expected, rtol=1e-10, atol=0.0)
        torch.testing.assert_close(norms.take(), 0.5 * expected, rtol=1e-10, atol=0.0)
        for scale in (0.5, 0.25):
            backward(model, scale=scale)
        both = norms.take()
        torch.testing.assert_close(both, torch.cat([0.5 * expected, 0.25 * expected]), rtol=1e-10, atol=0.0)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    backward(plain, scale=1.75)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def test_forward_passes_may_end_in_another_order():
    model, other = network(), INPUTS[:2] + 1.0
    expected = torch.cat([norms_one_by_one(model, INPUTS), norms_one_by_one(model, other)])
    with PerSampleNorms(model) as norms:
        first = wave(model(INPUTS), torch.arange(5)).sum()
        wave(model(other), torch.arange(2)).sum().backward()
        first.backward()
        torch.testing.assert_close(norms.take(), expected, rtol=1e-10, atol=0.0)


def test_second_backward_through_one_forward_is_an_error_of_take_alone():
    model = network()
    with PerSampleNorms(model) as norms:
        loss = wave(model(INPUTS), torch.arange(5)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second backward pass"):
            norms.take()
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


def test_failing_forward_leaves_the_engine_usable():
    model = network()
    with PerSampleNorms(model) as norms:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(INPUTS[:, :2])
        assert not _get_current_function_mode_stack()
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


class TwoSizes(nn.Module):
    """Takes inputs that do not agree on the size of the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, one, other):
        return self.first(one).sum(), self.second(other).sum()


def test_batch_whose_size_cannot_be_told_is_an_error():
    model = TwoSizes()
    with PerSampleNorms(model) as norms:
        one, other = model(torch.randn(4, 3), torch.randn(5, 3))
        (one + other).backward()
        assert model.first.weight.grad is not None
        with pytest.raises(RuntimeError, match="size of the batch cannot be told.*4 and 5"):
            norms.take()


class Mixed(nn.Module):
    """Averages over the batch before a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs.mean(0))


def test_parameters_behind_a_mix_of_samples_are_refused_by_name():
    model = Mixed()
    with PerSampleNorms(model) as norms:
        model(torch.randn(4, 3)).sum().backward()
        with pytest.raises(RuntimeError, match="made of `layer.weight`, `layer.bias` alone"):
            norms.take()


def test_modules_that_cannot_be_measured_are_named_all_at_once():
    model = nn.ModuleDict(
        {
            "fine": nn.Linear(2, 2),
            "lazy": nn.LazyLinear(3),
            "deep": nn.Sequential(nn.ReLU(), nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2])),
        }
    )
    with pytest.raises(NotImplementedError) as caught:
        PerSampleNorms(model)
    for path in ("lazy (LazyLinear)", "deep.1 (AdaptiveLogSoftmaxWithLoss)"):
        assert path in str(caught.value)
    assert "fine" not in str(caught.value)


def test_frozen_modules_are_not_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2]).requires_grad_(False))
    PerSampleNorms(model).close()


class Penalized(nn.Module):
    """Every layer that supplies its gradients: convolutions, dense layers on tokens, a layer norm, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense, self.norm = nn.Conv1d(2, 16, 3), nn.Linear(16, 16), nn.LayerNorm(16)
        self.frozen, self.head = nn.Linear(16, 16), nn.Parameter(torch.zeros(16, 3))
        self.frozen.bias.requires_grad_(False)

    def forward(self, inputs):
        hidden = torch.tanh(self.conv(inputs)).transpose(1, 2)
        return torch.tanh(self.frozen(self.norm(torch.tanh(self.dense(hidden))))) @ self.head


def test_gradients_of_gradients_train_as_without_norms_and_are_refused():
    model = randomize(Penalized().double())
    x = torch.randn(3, 2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def step():
        inputs = x.clone().requires_grad_()
        result = model(inputs)
        (slope,) = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
        model.zero_grad()
        (result.sum() + (slope.norm() - 1) ** 2).backward()
        return [torch.as_tensor(p.grad).clone() for p in (*model.parameters(), inputs) if p.requires_grad]

    expected = step()
    for check in ("never", "always"):
        with PerSampleNorms(model, check=check) as norms:
            for grad, plain in zip(step(), expected, strict=True):
                torch.testing.assert_close(grad, plain, rtol=1e-10, atol=1e-12)
            with pytest.raises(RuntimeError, match="gradients of gradients were taken"):
                norms.take()


def test_create_graph_alone_is_measured():
    model = randomize(Penalized().double())
    x = torch.randn(3, 2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with PerSampleNorms(model, check="never") as norms:
        wave(model(x), torch.arange(3)).sum().backward()
        plain = norms.take()
    with PerSampleNorms(model, check="never") as norms:
        losses = wave(model(x), torch.arange(3))
        torch.autograd.grad(losses.sum(), [p for p in model.parameters() if p.requires_grad], create_graph=True)
        torch.testing.assert_close(norms.take(), plain, rtol=1e-10, atol=0.0)


def test_model_that_calls_itself_is_one_forward():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, inputs, depth=2):
            return self.layer(inputs) if depth == 0 else self(torch.tanh(self.layer(inputs)), depth - 1)

    model = randomize(Recursive().double())
    with PerSampleNorms(model) as norms:
        backward(model)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, INPUTS), rtol=1e-10, atol=0.0)


def test_inputs_may_want_a_gradient_themselves():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.rand(5, 3)
    taken = []
    for inputs in (x, x.clone().requires_grad_()):
        with PerSampleNorms(model) as norms:
            model(inputs).square().sum().backward()
            taken.append(norms.take())
    assert torch.equal(taken[0], taken[1])
