"""Mixed precision, gradient checkpointing, compilation, and the bound from the last layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from adamcb import AdaptiveLoader
from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, randomize
from tests.reference.gradnorm import norms_one_by_one, wave


def images(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(6, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(dtype)


def network() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(144, 7), nn.PReLU()]
    return randomize(nn.Sequential(*layers, nn.LayerNorm(7), nn.Linear(7, 3)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_autocast_gives_float32_norms_and_unchanged_gradients(dtype, tolerance):
    model, inputs = network(), images(torch.float32)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            losses = wave(model(inputs).float(), torch.arange(6))
        model.zero_grad()
        losses.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    plain = run()
    with PerSampleNorms(model) as norms:
        ours = run()
        taken = norms.take()
    assert torch.equal(ours, plain)
    assert taken.dtype == torch.float32
    expected = norms_one_by_one(model.double(), images())
    torch.testing.assert_close(taken.double(), expected, rtol=tolerance, atol=0.0)


class Tokens(nn.Module):
    """Dense layers on sequences, one of them used twice, and a parameter in an operation without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.zeros(8, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.tanh(self.second(torch.tanh(self.first(inputs)))))
        return torch.einsum("kti,io->kto", hidden, self.mix)


@pytest.mark.parametrize("mode", ["exact", "last-layer"])
def test_backward_inside_autocast_gives_the_norms_of_one_outside(mode):
    model = randomize(Tokens())
    inputs = torch.randn(5, 16, 8, generator=torch.Generator().manual_seed(2))
    taken = []
    for inside in (True, False):
        with PerSampleNorms(model, mode=mode) as norms:
            with torch.autocast("cpu", torch.bfloat16):
                losses = wave(model(inputs).float(), torch.arange(5))
                if inside:
                    losses.sum().backward()
                    taken.append(norms.take())
            if not inside:
                losses.sum().backward()
                taken.append(norms.take())
    assert taken[0].dtype == taken[1].dtype == torch.float32
    torch.testing.assert_close(taken[0], taken[1], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("width", "length"), [(8, 3), (24, 2)], ids=["formed", "observed"])
def test_autocast_around_the_backward_pass_alone(width, length):
    layer = randomize(nn.Linear(width, width))
    inputs = torch.randn(5, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with PerSampleNorms(layer) as norms:
        losses = wave(layer(inputs.float()), torch.arange(5))
        with torch.autocast("cpu", torch.bfloat16):
            losses.sum().backward()
            assert torch.is_autocast_enabled("cpu")
            taken = norms.take()
    assert taken.dtype == torch.float32
    torch.testing.assert_close(taken.double(), norms_one_by_one(layer.double(), inputs), rtol=1e-5, atol=0.0)


def test_passes_that_wait_are_settled_in_full_precision_by_the_next_one():
    model = randomize(Tokens())
    inputs = torch.randn(5, 16, 8, generator=torch.Generator().manual_seed(2))
    with PerSampleNorms(model) as norms:
        wave(model(inputs), torch.arange(5)).sum().backward()
        with torch.autocast("cpu", torch.bfloat16):
            model(inputs)
        taken = norms.take()
    assert taken.dtype == torch.float32
    expected = norms_one_by_one(model.double(), inputs.double())
    torch.testing.assert_close(taken.double(), expected, rtol=1e-5, atol=0.0)


class Product(torch.autograd.Function):
    """A function of the user's own that leaves types to autocast, as it may if it runs under autocast alone."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(ctx, *grads):
        inputs, weight = ctx.saved_tensors
        return grads[0] @ weight.t(), inputs.flatten(0, -2).t() @ grads[0].flatten(0, -2)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Product.apply(inputs, self.weight)


def test_custom_function_finds_autocast_as_it_is():
    model, inputs = randomize(Custom()), torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(2))
    with PerSampleNorms(model) as norms, torch.autocast("cpu", torch.bfloat16):
        wave(model(inputs).float(), torch.arange(5)).sum().backward()
        taken = norms.take()
    assert taken.dtype == torch.float32
    expected = norms_one_by_one(model.double(), inputs.double())
    torch.testing.assert_close(taken.double(), expected, rtol=0.05, atol=0.0)


def test_grad_scaler_is_undone_through_the_weights():
    model, inputs = network(), images(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    weights = torch.linspace(0.5, 2.0, 6)
    with PerSampleNorms(model) as norms:
        with torch.autocast("cpu", torch.float16):
            losses = wave(model(inputs).float(), torch.arange(6))
        scaler.scale((weights * losses).sum()).backward()
        taken = norms.take() / (weights * scaler.get_scale())
    expected = norms_one_by_one(model.double(), images())
    torch.testing.assert_close(taken.double(), expected, rtol=0.01, atol=0.0)


def test_half_precision_gradients_do_not_overflow_when_squared():
    model = nn.Linear(64, 64, bias=False).half()
    with PerSampleNorms(model) as norms:
        (model(torch.full((2, 64), 100.0, dtype=torch.float16)) * 50).sum().backward()
        taken = norms.take()
    torch.testing.assert_close(taken, torch.full((2,), 100.0 * 50 * 64), rtol=1e-6, atol=0.0)


class Checkpointed(nn.Module):
    """Two blocks recomputed in the backward pass, the second one run twice."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Sequential(nn.Conv1d(3, 3, 3, padding=1), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), nn.Tanh())
        self.last = nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.requires_grad_()
        for block in (self.first, self.second, self.second):
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_count_once(reentrant):
    model = randomize(Checkpointed(reentrant).double())
    inputs = torch.randn(4, 3, 8, dtype=torch.float64)
    gradients = []
    for attached in (False, True):
        model.zero_grad()
        if attached:
            with PerSampleNorms(model) as norms:
                wave(model(inputs.clone()), torch.arange(4)).sum().backward()
                taken = norms.take()
        else:
            wave(model(inputs.clone()), torch.arange(4)).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for ours, plain in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(taken, _without_checkpoints(model, inputs), rtol=1e-10, atol=0.0)


def _without_checkpoints(model: Checkpointed, inputs: torch.Tensor) -> torch.Tensor:
    chain = nn.Sequential(model.first, model.second, model.second, model.last)
    return norms_one_by_one(chain, inputs)


def test_compiled_model_is_measured_uncompiled_with_a_warning():
    model = network().double()
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(UserWarning, match="runs uncompiled while it is measured"):
        norms = PerSampleNorms(compiled)  # type: ignore[arg-type]
    wave(compiled(images()), torch.arange(6)).sum().backward()
    torch.testing.assert_close(norms.take(), norms_one_by_one(model, images()), rtol=1e-10, atol=0.0)
    norms.close()


def test_last_layer_of_a_compiled_model_needs_no_warning():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    compiled = torch.compile(model, backend="eager")
    inputs = torch.randn(5, 3, dtype=torch.float64)
    with PerSampleNorms(compiled, mode="last-layer") as norms:  # type: ignore[arg-type]
        wave(compiled(inputs), torch.arange(5)).sum().backward()
        taken = norms.take()
    torch.testing.assert_close(taken, _gradient_norms(model(inputs)), rtol=1e-12, atol=0.0)


def test_model_compiled_in_place_is_warned_of():
    model = network()
    model.compile(backend="eager")
    with pytest.warns(UserWarning, match=r"use torch.compile\(model\) and pass what it returns") as caught:
        PerSampleNorms(model).close()
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="compiled in place") as caught:
        AdaptiveLoader(model, TensorDataset(images()), 2).close()
    assert [warning.filename for warning in caught] == [__file__]


def test_compiling_the_measured_model_itself_is_told_by_take():
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="eager")
    with PerSampleNorms(model) as norms:
        compiled(torch.randn(4, 3)).sum().backward()
        with pytest.raises(RuntimeError, match="pass what torch.compile returned"):
            norms.take()


def _gradient_norms(result: torch.Tensor) -> torch.Tensor:
    leaf = result.detach().requires_grad_()
    return torch.autograd.grad(wave(leaf, torch.arange(len(leaf))).sum(), leaf)[0].flatten(1).norm(dim=1)


class Ending(nn.Module):
    """Layers, and what comes after the last of them."""

    def __init__(self, ending) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
        self.ending: Any = ending

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.ending(self.layers(inputs))


ENDINGS = {
    "logits": lambda z: z,
    "log-softmax": lambda z: F.log_softmax(z, -1),
    "activation": lambda z: torch.tanh(z).square(),
    "pooled": lambda z: torch.tanh(z).mean(1, keepdim=True),
    "time first": lambda z: torch.tanh(z.transpose(0, 1)).transpose(0, 1),
}


@pytest.mark.parametrize("shape", [(5, 3), (5, 4, 3)], ids=["vectors", "sequences"])
@pytest.mark.parametrize("name", ENDINGS)
def test_last_layer_mode_gives_the_gradient_at_the_last_layer(name, shape):
    if name == "time first" and len(shape) == 2:
        pytest.skip("needs a sequence")
    model = randomize(Ending(ENDINGS[name]).double())
    inputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    with PerSampleNorms(model, mode="last-layer") as norms:
        (weights * wave(model(inputs), torch.arange(5))).sum().backward()
        taken = norms.take() / weights
    leaf = model.layers(inputs).detach().requires_grad_()
    gradient = torch.autograd.grad(wave(model.ending(leaf), torch.arange(5)).sum(), leaf)[0]
    torch.testing.assert_close(taken, gradient.flatten(1).norm(dim=1), rtol=1e-10, atol=0.0)


def test_last_layer_mode_reads_the_gradients_that_losses_of_tokens_leave():
    model = randomize(Ending(lambda z: z).double())
    inputs = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(20).remainder(3).view(5, 4)

    def losses(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)

    with PerSampleNorms(model, mode="last-layer") as norms:
        losses(model(inputs)).sum().backward()
        taken = norms.take()
    leaf = model(inputs).detach().requires_grad_()
    gradient = torch.autograd.grad(losses(leaf).sum(), leaf)[0]
    assert not gradient.is_contiguous()
    torch.testing.assert_close(taken, gradient.flatten(1).norm(dim=1), rtol=1e-12, atol=0.0)


def test_last_layer_mode_reads_gradients_of_one_number_a_sample():
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    with PerSampleNorms(model, mode="last-layer") as norms:
        (torch.tensor([1.0, -2.0]) * model(torch.ones(2, 3, dtype=torch.float64))).sum().backward()
        torch.testing.assert_close(norms.take(), torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_last_layer_mode_accepts_what_exact_mode_refuses():
    model = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2])
    with pytest.raises(NotImplementedError, match="AdaptiveLogSoftmaxWithLoss"):
        PerSampleNorms(model)
    PerSampleNorms(model, mode="last-layer").close()


def test_channels_last_and_in_place_activations():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True))
    model = randomize(model.double()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check(model, images().to(memory_format=torch.channels_last), norms_one_by_one)
