"""What the tracer cannot follow: custom functions that mix samples, and changes in place by scripted functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_mixing import compare, norms_of_engine
from tests.gradnorm.test_uses import numbers

K, D = 4, 5
TURN = torch.tensor([2, 0, 3, 1])


class Between(nn.Module):
    """A function between two dense layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head, self.function = nn.Linear(D, D), nn.Linear(D, D), function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.function(self.layer(inputs))))


def between(function: Callable[[Tensor], Tensor]) -> Between:
    return randomize(Between(function).double())


def custom(forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor], *, saves: bool = False) -> Any:
    """Return a custom autograd function; one that `saves` lets go of what it kept when it goes backward."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: Tensor) -> Tensor:
            if saves:
                ctx.kept = inputs
            return forward(inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            if saves:
                assert ctx.kept is not None
                ctx.kept = None
            return backward(grads[0])

    return Custom.apply


def _mixed(h: Tensor, turn: Tensor) -> Tensor:
    return 0.5 * h + 0.5 * h[turn]


MIXING: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "mean taken off": (lambda h: h - h.mean(0), lambda g: g - g.mean(0)),
    "mixup": (lambda h: _mixed(h, TURN), lambda g: _mixed(g, TURN.argsort())),
    "sums of earlier ones": (lambda h: h + h.cumsum(0), lambda g: g + g.flip(0).cumsum(0).flip(0)),
    "a product of samples": (lambda h: h + (h @ h.T) @ h, lambda g: g + g.sum(0)),
}


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("name", MIXING)
def test_custom_functions_that_mix_samples_are_refused(name, saves):
    model, x = between(custom(*MIXING[name], saves=saves)), numbers(K, D)
    for check in ("never", "always"):
        with pytest.raises(RuntimeError, match="mixed: a custom autograd function runs .* does not keep them apart"):
            norms_of_engine(model, x, check=check)


APART: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "rounded to a grid of the batch": (lambda h: (h / (s := h.abs().max() / 7)).round() * s, lambda g: g),
    "reversed": (lambda h: h.view_as(h), lambda g: -0.3 * g),
    "rows that are turned": (lambda h: h.roll(1, 1), lambda g: g.roll(-1, 1)),
    "samples that are turned twice": (lambda h: h.roll(1, 0).roll(-1, 0), lambda g: g),
}


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("name", APART)
def test_custom_functions_whose_backward_keeps_samples_apart_are_right(name, saves):
    """Also where the forward looks at the whole batch, as for a scale; and state that goes is there for training."""
    model, x = between(custom(*APART[name], saves=saves)), numbers(K, D)
    expected = []
    for k in range(K):  # each loss has a forward pass of its own: the function may go backward once
        _waves(model(x))[k].backward()
        expected.append(_norm(model))
        model.zero_grad()
    for check in ("never", "always"):
        with PerSampleNorms(model, check=check) as norms:
            _waves(model(x)).sum().backward()
            torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=1e-13)
        model.zero_grad()


def _norm(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()


def _waves(out: Tensor) -> Tensor:
    return torch.sin(out + torch.arange(len(out)).view(-1, 1)).sum(1)


def test_statistics_of_the_batch_without_gradients_are_constants():
    def function(h: Tensor) -> Tensor:
        with torch.no_grad():
            scale, center = h.std(), h.mean(0)
        return (h - center) / scale

    compare(between(function), numbers(K, D))


def test_a_reentrant_checkpoint_may_run_what_is_not_known():
    def function(h: Tensor) -> Tensor:
        return checkpoint(lambda h: h + torch.special.i0e(h), h, use_reentrant=True)

    model, x = between(function), numbers(K, D)
    expected = []
    for k in range(K):
        _waves(model(x))[k].backward()
        expected.append(_norm(model))
        model.zero_grad()
    with PerSampleNorms(model, check="always") as norms:
        _waves(model(x)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=1e-13)


def _scripted(code: Callable[[Tensor], None]) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
        script: Any = torch.jit.script(code)

    def function(h: Tensor) -> Tensor:
        h = h + 0
        script(h)
        return custom(lambda h: h.view_as(h), lambda g: -g, saves=True)(h)

    return function


def _center(h: torch.Tensor) -> None:
    h.sub_(h.mean(0))


def _center_a_view(h: torch.Tensor) -> None:
    h[:, 1:].sub_(h[:, 1:].mean(0))


@pytest.mark.parametrize("code", [_center, _center_a_view])
def test_changes_in_place_by_scripted_functions_are_refused(code):
    model, x = between(_scripted(code)), numbers(K, D)
    for check in ("never", "always"):
        with pytest.raises(RuntimeError, match="cannot see.*TorchScript"):
            norms_of_engine(model, x, check=check)


def _through_views(h: Tensor) -> Tensor:
    h = h + 0
    view = h[:, 1:]
    h[:, 0].mul_(2)
    h.detach().add_(0)
    view.add_(1)
    torch.mul(h.detach(), 2, out=h.detach())
    nn.functional.dropout(h, 0.0, inplace=True)
    h[:, 2] = 3.0
    return h + view.sum(1, keepdim=True)


def test_changes_in_place_that_are_seen_leave_samples_known():
    compare(between(_through_views), numbers(K, D))


@pytest.mark.parametrize("seed", range(3))
def test_autocast_inside_the_forward_rounds_and_is_not_refused(seed):
    """As where Accelerate wraps `forward`: autocast is not on yet when the model is called."""
    torch.manual_seed(seed)
    model: Any = nn.ModuleDict({"a": nn.Linear(32, 64), "norm": nn.LayerNorm(64), "b": nn.Linear(64, 10)})
    model.forward = lambda x: model["b"](model["norm"](torch.relu(model["a"](x)))).mean(1)
    x, targets = torch.randn(16, 64, 32), torch.randint(0, 10, (16,))

    def norms_where(inside: bool) -> Tensor:
        plain = model.forward
        if inside:
            model.forward = torch.autocast("cpu", torch.bfloat16)(plain)
        with PerSampleNorms(model, check="always") as norms, torch.autocast("cpu", torch.bfloat16, not inside):
            out = model(x).float()
            with torch.autocast("cpu", enabled=False):
                nn.functional.cross_entropy(out, targets, reduction="none").sum().backward()
                taken = norms.take()
        model.forward = plain
        return taken

    torch.testing.assert_close(norms_where(True), norms_where(False), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("place", [0, None])
def test_a_sequence_whose_forward_was_wrapped_is_traced(place):
    """Accelerate puts autocast around `forward`, of the whole model or of its layers."""
    model = randomize(nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 2)).double())
    wrapped = model if place is None else model[place]
    wrapped.forward = torch.autocast("cpu", torch.bfloat16)(wrapped.forward)
    x = numbers(K, D)
    expected = []
    for k in range(K):
        _waves(model(x))[k].backward()
        expected.append(_norm(model))
        model.zero_grad()
    for check in ("never", "always"):
        with PerSampleNorms(model, check=check) as norms:
            _waves(model(x)).sum().backward()
            torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=2e-2, atol=0.0, check_dtype=False)
        model.zero_grad()
