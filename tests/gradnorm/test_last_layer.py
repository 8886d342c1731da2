"""Last-layer norms, where the model's result is not the last layer's: several heads, other orders, gathered rows."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adamcb
from adamcb import PerSampleNorms
from adamcb.gradnorm import _owners

K, T, WIDTH, CLASSES = 4, 3, 5, 3


class Model(nn.Module):
    """Keeps what its last layers compute in `made`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), nn.Linear(WIDTH, CLASSES)
        self.made: list[Tensor] = []

    def head(self, x: Tensor) -> Tensor:
        self.made.append(self.second(x))
        return self.made[-1]


class FlatTimeFirst(Model):
    """[K, T] in and out; the head sees [T·K] rows, as in PyTorch's example of a language model."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head(x.transpose(0, 1).reshape(-1, WIDTH))
        return F.log_softmax(rows, -1).view(x.shape[1], len(x), CLASSES).transpose(0, 1)


class TimeFirst(Model):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.head(x.transpose(0, 1)), -1).transpose(0, 1)


class MaskedRows(Model):
    """The head sees the rows behind a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        result = x.new_zeros(*x.shape[:2], CLASSES)
        result[mask] = torch.tanh(self.head(x[mask]))
        return result


class TwoViews(Model):
    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.tanh(self.head(torch.cat([x, -x]))).chunk(2)
        return first - second


class Relu(Model):
    """Most of what the head computes is cut off; for one sample, all of it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.head(x)) * (torch.arange(len(x)) != 1).double()[:, None]


class Heads(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(x))
        self.made.append(self.first(features))
        return self.made[-1], self.head(features)


class Hidden(Model):
    """Returns what its head is made of, too."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        self.made.append(hidden)
        return {"hidden": hidden, "logits": self.head(torch.tanh(hidden))}


class PositionFirst(Model):
    """The first argument is the same for all samples."""

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.head(x + t))


def losses_of(result: Tensor) -> Tensor:
    """Return a loss per sample that is different for each of them."""
    return torch.sin(result.flatten(1) + torch.arange(len(result))[:, None]).sum(1)


def sequences() -> Tensor:
    return torch.randn(K, T, WIDTH)


def rows() -> Tensor:
    return torch.randn(K, WIDTH)


MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]).bool()
CASES = {
    "flat, time first": (FlatTimeFirst, lambda: (sequences(),), losses_of),
    "flat, T = K": (FlatTimeFirst, lambda: (torch.randn(K, K, WIDTH),), losses_of),
    "time first": (TimeFirst, lambda: (sequences(),), losses_of),
    "time first, T = K": (TimeFirst, lambda: (torch.randn(K, K, WIDTH),), losses_of),
    "8 = 2K rows behind a mask": (MaskedRows, lambda: (sequences(), MASK), losses_of),
    "two views": (TwoViews, lambda: (rows(),), losses_of),
    "cut off": (Relu, lambda: (rows(),), losses_of),
    "two heads": (Heads, lambda: (rows(),), lambda result: losses_of(result[0]) + losses_of(result[1])),
    "the second head": (Heads, lambda: (rows(),), lambda result: losses_of(result[1])),
    "logits beside hidden": (Hidden, lambda: (rows(),), lambda result: losses_of(result["logits"])),
    "hidden beside logits": (Hidden, lambda: (rows(),), lambda result: losses_of(result["hidden"])),
    "a position first": (PositionFirst, lambda: (torch.randn(1, WIDTH), rows()), losses_of),
}


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def single_passes(model: Model, inputs: tuple, loss) -> Tensor:
    """Return ‖∂lossⱼ/∂z‖ by one backward pass a sample, z what the last layers that the losses use computed."""
    model.made.clear()
    losses, made = loss(model(*inputs)), model.made
    if isinstance(model, Hidden):
        (through_head,) = torch.autograd.grad(losses.sum(), made[1], allow_unused=True, retain_graph=True)
        made = made[:1] if through_head is None else made[1:]
    norms = []
    for j in range(K):
        grads = torch.autograd.grad(losses[j], made, retain_graph=True, allow_unused=True)
        norms.append(sum(grad.square().sum() for grad in grads if grad is not None) ** 0.5)
    return torch.stack([torch.as_tensor(norm) for norm in norms])


@pytest.mark.parametrize("name", CASES)
def test_norms_are_those_of_single_passes(name):
    make, inputs, loss = CASES[name]
    model = make()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for _ in range(3):  # what was found in the first pass is used again
            batch = inputs()
            loss(model(*batch)).sum().backward()
            measured = engine.take()
            model.zero_grad()
            engine.is_paused = True
            torch.testing.assert_close(measured, single_passes(model, batch, loss), rtol=1e-8, atol=1e-12)
            engine.is_paused = False


def test_another_mask_of_the_same_size_is_another_question():
    model, x = MaskedRows(), sequences()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for mask in (MASK, MASK.flip(0), MASK.flip(1)):
            losses_of(model(x, mask)).sum().backward()
            measured = engine.take()
            engine.is_paused = True
            torch.testing.assert_close(measured, single_passes(model, (x, mask), losses_of), rtol=1e-8, atol=1e-12)
            engine.is_paused = False


class Pooled(Model):
    """[K, T] in, [K] out, whatever T is; the head sees [T·K] rows."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head(x.transpose(0, 1).reshape(-1, WIDTH))
        return torch.tanh(rows).view(x.shape[1], len(x), CLASSES).mean(0)


def test_another_number_of_rows_behind_a_result_of_the_same_shape_is_another_question():
    model = Pooled()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for length in (T, T + 2, T):
            x = torch.randn(K, length, WIDTH)
            losses_of(model(x)).sum().backward()
            measured = engine.take()
            engine.is_paused = True
            torch.testing.assert_close(measured, single_passes(model, (x,), losses_of), rtol=1e-8, atol=1e-12)
            engine.is_paused = False


def test_the_graph_is_asked_once_for_a_shape(monkeypatch):
    asked = []
    ask = _owners._asked
    monkeypatch.setattr(_owners, "_asked", lambda *args: asked.append(1) or ask(*args))
    model = TwoViews()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for _ in range(5):
            losses_of(model(rows())).sum().backward()
            engine.take()
        assert len(asked) == 1
        losses_of(model(torch.randn(K + 2, WIDTH))).sum().backward()
        assert len(engine.take()) == K + 2
        assert len(asked) == 2


def test_asking_the_graph_changes_no_gradient_and_no_random_number():
    model, x = FlatTimeFirst(), sequences()
    losses_of(model(x)).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    state = torch.random.get_rng_state()
    with PerSampleNorms(model, mode="last-layer"):
        losses_of(model(x)).sum().backward()
    assert torch.equal(torch.random.get_rng_state(), state)
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", ["of a tensor", "of a module"])
def test_hooks_are_called_once_a_backward_pass(kind):
    last, called = nn.Tanh(), []
    model = nn.Sequential(TwoViews(), last)
    if kind == "of a module":
        last.register_full_backward_hook(lambda *_: called.append(1))
    else:
        last.register_forward_hook(lambda module, inputs, result: result.register_hook(called.append) and None)
    with PerSampleNorms(model, mode="last-layer") as engine:
        losses_of(model(rows())).sum().backward()
        assert len(engine.take()) == K
    assert len(called) == 1


def test_batchnorm_behind_the_last_layer_gives_contributions():
    """It ties samples together: a sample's row of the gradient is what it contributes."""
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.BatchNorm1d(CLASSES, affine=False))
    x = rows()
    z = model[0](x)
    expected = torch.autograd.grad(losses_of(model[1](z)).sum(), z)[0].norm(dim=1)
    with PerSampleNorms(model, mode="last-layer") as engine:
        losses_of(model(x)).sum().backward()
        torch.testing.assert_close(engine.take(), expected)


def test_a_loader_says_that_it_learns_nothing_from_gradients_of_gradients():
    data = torch.utils.data.TensorDataset(torch.randn(64, WIDTH))
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
    with adamcb.AdaptiveLoader(model, data, 8, device="cpu") as loader, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for (x,) in loader:
            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loader.weigh((slope.norm(dim=1) - 1.0) ** 2).backward()
        loader.learn()
    assert [str(warning.message).split(",")[0] for warning in said] == [
        "AdaptiveLoader: the model went backward before `weigh`"
    ]
    assert said[0].filename == __file__
    assert 'Use scores="losses"' in str(said[0].message)
