"""Constructions that hide parameters or move samples: each is right, or refused by name. K = 4, in float64."""

from __future__ import annotations

import dataclasses
import warnings
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, randomize, weights_for
from tests.gradnorm.test_uses import Formula, numbers
from tests.reference.gradnorm import norms_by_backward, norms_one_by_one, wave

DIMS: Any = ([1], [1])
K, T, D = 4, 3, 5


def model(formula: Callable[[Any, Tensor], Any], **shapes: tuple[int, ...]) -> Any:
    """Return a model with a dense layer `m.layer`, a head `m.head` and the parameters that are named."""
    made: Any = Formula(formula, **shapes)
    made.layer, made.head = nn.Linear(D, D), nn.Linear(D, D)
    return randomize(made.double())


def _written(m: Any, x: Tensor) -> Tensor:
    o = torch.zeros(len(x), T + 1, D, dtype=x.dtype)
    o[:, 1:] = m.layer(x)
    return m.head(o)


def _narrowed(m: Any, x: Tensor) -> Tensor:
    o = torch.zeros(len(x), T + 1, D, dtype=x.dtype)
    o.narrow(1, 0, T).copy_(m.layer(x))
    return m.head(o)


def _added_to_a_view(m: Any, x: Tensor) -> Tensor:
    o = torch.zeros(len(x), T + 1, D, dtype=x.dtype)
    o[:, :T] += m.layer(x)
    o[:, 1:].add_(m.layer(x))
    return m.head(o)


def _inputs_written(m: Any, x: Tensor) -> Tensor:
    o = torch.zeros(len(x), T + 1, D, dtype=x.dtype)
    o[:, 1:].copy_(x)
    return m.head(o)


def _token_written(m: Any, x: Tensor) -> Tensor:
    h = m.layer(x)
    h[:, 0] = m.a
    return m.head(h)


def _mask_written(m: Any, x: Tensor) -> Tensor:
    h = m.layer(x)
    h[x[:, :, 0] > 0] = m.a
    return m.head(h)


class Scale(torch.autograd.Function):
    """x · w, with a backward of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, *grads):
        x, w = ctx.saved_tensors
        return grads[0] @ w.t(), x.flatten(0, -2).t() @ grads[0].flatten(0, -2)


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, w):
        return (4 * w).round() / 4

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


@torch.library.custom_op("adamcb_tests::gated", mutates_args=())
def gated(x: Tensor, w: Tensor) -> Tensor:
    return x.sigmoid() * w


gated.register_autograd(
    lambda ctx, grad: (
        grad * ctx.saved_tensors[1] * ctx.saved_tensors[0].sigmoid() * (1 - ctx.saved_tensors[0].sigmoid()),
        (grad * ctx.saved_tensors[0].sigmoid()).sum_to_size(ctx.saved_tensors[1].shape),
    ),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def _spectral(m: Any, x: Tensor) -> Tensor:
    """Multiply frequencies by real numbers seen as complex ones, as GFNet does."""
    spectrum = torch.fft.rfft(m.layer(x), dim=1, norm="ortho")
    return m.head(torch.fft.irfft(spectrum * torch.view_as_complex(m.a), n=T, dim=1, norm="ortho"))


def _fourier_operator(m: Any, x: Tensor) -> Tensor:
    """Mix channels at each frequency, as FNO does."""
    spectrum = torch.fft.rfft(m.layer(x).transpose(1, 2))
    mixed = torch.einsum("bix,iox->box", spectrum, torch.view_as_complex(m.a))
    return m.head(torch.fft.irfft(mixed, n=T).transpose(1, 2))


def _checkpointed_with(argument: Callable[[Any], Tensor], outside: Callable[[Any, Tensor], Tensor] | None = None):
    def formula(m: Any, x: Tensor) -> Tensor:
        h = m.layer(x)
        h = outside(m, h) if outside is not None else h
        return m.head(checkpoint(lambda a, w: torch.tanh(a @ w), h, argument(m), use_reentrant=True))

    return formula


def _inside_and_outside(m: Any, x: Tensor) -> Tensor:
    h = F.linear(x, 1 + m.a)
    return checkpoint(lambda a: torch.tanh(F.linear(a, 1 + m.a)), h, use_reentrant=True) + m.layer(x)


@torch.no_grad()
def _rows(x: Tensor) -> Tensor:
    return torch.full((len(x), 1, 1), 0.5, dtype=x.dtype)


def _constants(x: Tensor) -> Tensor:
    return torch.tensor(x.tolist(), dtype=x.dtype)


RIGHT: dict[str, tuple[Callable, dict]] = {
    "written into a slice": (_written, {}),
    "copied into a narrow view": (_narrowed, {}),
    "added to a view in place": (_added_to_a_view, {}),
    "inputs written into a slice": (_inputs_written, {}),
    "token written": (_token_written, {"a": (D,)}),
    "token written where a mask says": (_mask_written, {"a": (D,)}),
    "custom function of a transpose": (lambda m, x: m.head(Scale.apply(m.layer(x), m.a.t())), {"a": (D, D)}),
    "custom function of a product": (lambda m, x: m.head(Scale.apply(x, 2 * m.a)), {"a": (D, D)}),
    "straight-through weight": (lambda m, x: m.head(F.linear(m.layer(x), Round.apply(m.a))), {"a": (D, D)}),
    "straight-through, of a product": (lambda m, x: F.linear(m.layer(x), Round.apply(2 * m.a)), {"a": (D, D)}),
    "custom operator": (lambda m, x: m.head(gated(m.layer(x), m.a)), {"a": (D,)}),
    "custom operator of a product": (lambda m, x: m.head(gated(m.layer(x), 2 * m.a)), {"a": (D,)}),
    "real numbers seen as complex": (_spectral, {"a": (2, D, 2)}),
    "Fourier operator": (_fourier_operator, {"a": (D, D, 2, 2)}),
    "checkpoint with a transpose": (_checkpointed_with(lambda m: m.a.t()), {"a": (D, D)}),
    "checkpoint with a parameter": (_checkpointed_with(lambda m: m.a), {"a": (D, D)}),
    "checkpoint with a sum": (_checkpointed_with(lambda m: 1 + m.a), {"a": (D, D)}),
    "checkpoint and the same outside": (
        _checkpointed_with(lambda m: 1 + m.a, lambda m, h: h @ m.a),
        {"a": (D, D)},
    ),
    "parameter inside and outside a checkpoint": (_inside_and_outside, {"a": (D, D)}),
    "samples as a matrix's columns": (lambda m, x: F.linear(m.a, m.layer(x[:, 0])).t(), {"a": (K, D)}),
    "matrix on the left": (lambda m, x: (m.a @ m.layer(x[:, 0]).t()).t(), {"a": (K, D)}),
    "matrix on the left, sequences": (lambda m, x: m.head(m.a @ m.layer(x)), {"a": (K, T)}),
    "tensordot": (lambda m, x: torch.tensordot(m.a, m.layer(x[:, 0]), DIMS).t(), {"a": (K, D)}),
    "distances": (lambda m, x: torch.cdist(m.a, m.layer(x[:, 0])).t(), {"a": (K, D)}),
    "flipped and back": (lambda m, x: m.head(m.layer(x).flip(0)).flip(0), {}),
    "flipped": (lambda m, x: m.head(m.layer(x.flip(0))).flip(0), {}),
    "gathered": (
        lambda m, x: m.head(m.layer(x).gather(0, _turn(x).view(-1, 1, 1).expand(x.shape)))[_turn(x).argsort()],
        {},
    ),
    "sorted and unsorted": (lambda m, x: m.head(m.layer(x)[x[:, 0, 0].argsort()])[x[:, 0, 0].argsort().argsort()], {}),
    "cached parametrization": (lambda m, x: _cached(m, x), {}),
    "constants of the batch's size": (lambda m, x: m.layer(x) + m.head(_constants(x)), {}),
    "constants of the batch's size added": (lambda m, x: m.layer(x) * (m.a + _rows(x)), {"a": (1, T, D)}),
    "added to constants of the batch's size": (lambda m, x: m.layer(x) @ (_rows(x) + 2 * m.a), {"a": (1, D, D)}),
    "constants less a parameter": (lambda m, x: m.layer(x) * (_rows(x) - m.a), {"a": (1, T, D)}),
    "a parameter added to itself": (lambda m, x: m.layer(x) * (m.a + m.a), {"a": (1, T, D)}),
    "last positions": (lambda m, x: m.head(m.layer(x)[torch.arange(len(x)), x[:, :, 0].argmax(1)]), {}),
    "rows of a table": (lambda m, x: m.head(m.layer(x) + m.a[(x[:, :, 0].abs() * 7).long() % 6]), {"a": (6, D)}),
    "index_select of a table": (
        lambda m, x: m.head(m.a.index_select(0, (x.abs() * 7).long()[:, 0, 0] % 6)) + m.layer(x[:, 0]),
        {"a": (6, D)},
    ),
    "last dimension added": (lambda m, x: (m.layer(x)[..., None] * m.a).sum(-2), {"a": (D, 2)}),
    "patches": (lambda m, x: m.head(F.unfold(m.layer(x)[:, None], (2, 1)).transpose(1, 2) @ m.a), {"a": (2, D)}),
    "two forwards in one": (lambda m, x: m.head(m.layer(torch.cat([x, 0.5 * x]))).view(2, len(x), T, D).sum(0), {}),
    "where": (lambda m, x: m.head(torch.where(x > 0, m.layer(x), m.a)), {"a": (D,)}),
    "masked_fill": (lambda m, x: m.head(m.layer(x).masked_fill(x > 0.5, 0.0)), {}),
    "addmm": (lambda m, x: torch.addmm(m.b, m.layer(x).view(-1, D), m.a).view(len(x), T, 2), {"a": (D, 2), "b": (2,)}),
    "bmm with an expanded matrix": (
        lambda m, x: torch.bmm(m.layer(x), m.a.unsqueeze(0).expand(len(x), D, 2)),
        {"a": (D, 2)},
    ),
    "baddbmm": (
        lambda m, x: torch.baddbmm(m.b, m.layer(x), m.a.expand(len(x), D, 2)),
        {"a": (1, D, 2), "b": (1, T, 2)},
    ),
    "tiled matrices": (
        lambda m, x: torch.bmm(_heads(m.layer(x)), m.a.repeat(len(x), 1, 1).transpose(1, 2)).view(len(x), 5, T, 2),
        {"a": (5, 2, 1)},
    ),
    "relative positions": (
        lambda m, x: F.scaled_dot_product_attention(m.layer(x), x, x, attn_mask=(2 * m.a).expand(len(x), T, T)),
        {"a": (T, T)},
    ),
    "relative positions, once for all": (
        lambda m, x: F.scaled_dot_product_attention(m.layer(x), x, m.head(x), attn_mask=m.a, scale=0.3),
        {"a": (T, T)},
    ),
    "rows of constants": (
        lambda m, x: m.layer(x) + F.embedding(torch.arange(T), m.a) + F.embedding(torch.zeros(x.shape[:2]).long(), m.a),
        {"a": (6, D)},
    ),
    "einsum in heads": (lambda m, x: torch.einsum("bti,hid->bhtd", m.layer(x), m.a), {"a": (2, D, 3)}),
    "einsum by position": (lambda m, x: torch.einsum("bti,tio->bto", m.layer(x), m.a), {"a": (T, D, 2)}),
    "einsum with an ellipsis": (lambda m, x: torch.einsum("...i,oi->...o", m.layer(x), m.a), {"a": (2, D)}),
    "experts": (lambda m, x: _experts(m, x), {"a": (2, D, D)}),
    "lstm cell": (lambda m, x: _cells(m, x), {}),
    "unknown operation": (lambda m, x: m.head(torch.special.log_ndtr(m.layer(x))), {}),
}


def _heads(h: Tensor) -> Tensor:
    """Fold five heads of width one into the batch."""
    return h.unflatten(2, (5, 1)).transpose(1, 2).reshape(-1, T, 1)


def _turn(x: Tensor) -> Tensor:
    return torch.arange(len(x)).roll(1)


def _cached(m: Any, x: Tensor) -> Tensor:
    with parametrize.cached():
        return F.linear(torch.tanh(m.layer(x)), m.layer.weight)


def _experts(m: Any, x: Tensor) -> Tensor:
    """Send each token to one of two experts, and add what they say, as a mixture of experts does."""
    tokens = m.layer(x).view(-1, D)
    result = torch.zeros_like(tokens)
    for expert in range(2):
        rows = (x.view(-1, D)[:, 0] > 0).eq(expert == 0).nonzero().flatten()
        result.index_add_(0, rows, F.linear(tokens[rows], m.a[expert]))
    return m.head(result.view(x.shape))


def _cells(m: Any, x: Tensor) -> Tensor:
    state = torch.zeros(2, len(x), 3, dtype=x.dtype).unbind(0)
    for step in range(T):
        state = m.cell(x[:, step], state)
    return torch.cat(state, 1)


@pytest.mark.parametrize("name", RIGHT)
def test_hidden_parameter_is_measured_right(name):
    formula, shapes = RIGHT[name]
    made = model(formula, **shapes)
    if name == "cached parametrization":
        parametrize.register_parametrization(made.layer, "weight", nn.Softplus())
    if name == "lstm cell":
        made.cell = randomize(nn.LSTMCell(D, 3).double())
    check(made, numbers(K, T, D), norms_by_backward)


def scale_and_shift(x: Tensor, w: Tensor) -> Tensor:
    return x * w + w


def scripted(x: Tensor, w: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
        return torch.jit.script(scale_and_shift)(x, w)


def _penalized(m: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.tanh(m.layer(x)).sum(), x, create_graph=True)
    return m.layer(x) + slope


REFUSED: dict[str, tuple[Callable, dict, str]] = {
    "TorchScript": (lambda m, x: m.head(scripted(m.layer(x), m.a)), {"a": (D,)}, "cannot see.*TorchScript"),
    "softmax over the batch": (
        lambda m, x: m.head(m.layer(x).softmax(0)),
        {},
        "`linear` uses `head.weight`.*`softmax`",
    ),
    "softmax over the batch at the end": (lambda m, x: m.layer(x).softmax(0), {}, "samples are mixed: `softmax`"),
    "cumsum over the batch": (lambda m, x: m.layer(x).cumsum(0), {}, "samples are mixed: `cumsum`"),
    "attention over the batch": (
        lambda m, x: F.scaled_dot_product_attention(m.layer(x[:, 0]), m.layer(x[:, 0]), m.head(x[:, 0])),
        {},
        "samples are mixed: `scaled_dot_product_attention`",
    ),
    "mixup": (lambda m, x: m.layer(x) + 0.5 * m.layer(x)[_turn(x)], {}, "samples are mixed: `add`"),
    "centered": (lambda m, x: m.layer(x) - m.layer(x).mean(0), {}, "samples are mixed in `sub`.*`mean`"),
    "gradients of gradients": (_penalized, {}, "gradients of gradients"),
    "returned tensor made of parameters": (
        lambda m, x: (m.layer(x) + 0.0, 2 * m.a),
        {"a": (K, D)},
        "returned a tensor made of `a` alone",
    ),
    "returned constants": (
        lambda m, x: (m.layer(x) + 0.0, m.head(_constants(x))),
        {},
        "returned a tensor made of `head.weight`, `head.bias` alone",
    ),
    "returned parameter": (lambda m, x: (m.layer(x) + 0.0, m.a), {"a": (K, D)}, "`a` got a gradient but was not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_apart_is_refused(name):
    formula, shapes, words = REFUSED[name]
    made = model(formula, **shapes)
    with PerSampleNorms(made) as norms:
        result = made(numbers(K, T, D))
        results = result if isinstance(result, tuple) else (result,)
        sum(wave(each, torch.arange(K)).sum() for each in results).backward()  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match=words):
            norms.take()


def test_what_is_returned_but_does_no_harm_is_not_refused():
    made = model(lambda m, x: (m.layer(x) + 0.0, m.layer(x).mean(), m.layer(x).softmax(0), m.a), a=(K, D))
    with PerSampleNorms(made) as norms:
        wave(made(numbers(K, T, D))[0], torch.arange(K)).sum().backward()
        taken = norms.take()
    expected = norms_one_by_one(made, numbers(K, T, D))
    torch.testing.assert_close(taken, expected, rtol=1e-10, atol=0.0)


@dataclasses.dataclass
class Batch:
    tokens: Tensor
    extra: Tensor


INPUTS = {
    "dataclass": lambda x: Batch(x, x[:, 0]),
    "UserDict": lambda x: UserDict(tokens=x, extra=x[:, 0]),
    "dictionary": lambda x: {"tokens": x, "extra": x[:, 0]},
}


class TwoHeads(nn.Module):
    """Feeds two heads from two fields of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, batch: Any) -> Tensor:
        fields = batch if isinstance(batch, (dict, UserDict)) else vars(batch)
        return self.first(fields["tokens"]).flatten(1).sum(1, keepdim=True) * self.second(fields["extra"])


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_may_come_in_one_object(name):
    made, x = randomize(TwoHeads().double()), numbers(K, T, D)
    expected = []
    for k in range(K):
        loss = wave(made(INPUTS["dictionary"](x[k : k + 1])), torch.tensor([k])).sum()
        grads = torch.autograd.grad(loss, list(made.parameters()))
        expected.append(torch.cat([g.flatten() for g in grads]).norm())
    with PerSampleNorms(made) as norms:
        wave(made(INPUTS[name](x)), torch.arange(K)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=0.0)


class Positions(nn.Module):
    """Takes position numbers beside its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(6, D), nn.Linear(D, 2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.layer(torch.tanh(x + self.table(positions)))


@pytest.mark.parametrize("shape", [(1, T), (T,), (K, T)])
def test_positions_may_be_given_once_for_all(shape):
    made, x = randomize(Positions().double()), numbers(K, T, D)
    positions = torch.arange(T).expand(shape)
    expected = []
    for k in range(K):
        loss = wave(made(x[k : k + 1], torch.arange(T)), torch.tensor([k])).sum()
        expected.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(made.parameters()))]).norm())
    with PerSampleNorms(made, check="always") as norms:
        wave(made(x, positions), torch.arange(K)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=0.0)


def test_positions_as_many_as_samples_are_refused():
    made, x = randomize(Positions().double()), numbers(K, K, D)
    with PerSampleNorms(made) as norms:
        wave(made(x, torch.arange(K)), torch.arange(K)).sum().backward()
        with pytest.raises(RuntimeError, match="samples"):
            norms.take()


def test_layer_with_time_first_behind_one_with_the_batch_first_is_refused():
    made = model(lambda m, x: m.recurrent(m.layer(x))[0])
    made.recurrent = randomize(nn.GRU(D, D).double())
    with PerSampleNorms(made) as norms:
        wave(made(numbers(K, K, D)), torch.arange(K)).sum().backward()
        with pytest.raises(RuntimeError, match="takes dimension 1 of a tensor of shape"):
            norms.take()


def test_graphs_are_told_apart_by_a_map():
    """Nodes of three graphs, messages along edges, a sum over each graph."""
    owner = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    edges = torch.tensor([[0, 1, 3, 5, 6, 7, 8], [1, 2, 4, 6, 7, 8, 5]])

    class Graphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.head = nn.Linear(D, D), nn.Linear(D, 2)

        def forward(self, nodes: Tensor, edges: Tensor, owner: Tensor) -> Tensor:
            sent = torch.tanh(self.message(nodes))[edges[0]]
            nodes = nodes + torch.zeros_like(nodes).index_add(0, edges[1], sent)
            graphs = torch.zeros(int(owner.max()) + 1, D, dtype=nodes.dtype).index_add(0, owner, nodes)
            return self.head(torch.tanh(graphs))

    made, nodes = randomize(Graphs().double()), numbers(9, D)
    losses = wave(made(nodes, edges, owner), torch.arange(3))
    expected = []
    for loss in losses:
        grads = torch.autograd.grad(loss, list(made.parameters()), retain_graph=True)
        expected.append(torch.cat([grad.flatten() for grad in grads]).norm())
    with PerSampleNorms(made, check="always", samples=lambda nodes, edges, owner: owner) as norms:
        wave(made(nodes, edges, owner), torch.arange(3)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=0.0)


def test_second_backward_through_a_layer_that_forms_gradients_trains_on():
    made = randomize(nn.Sequential(nn.Conv1d(T, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)).double())
    x, weights = numbers(K, T, D), weights_for(numbers(K))
    plain = [
        2 * grad for grad in torch.autograd.grad((weights * wave(made(x), weights)).sum(), list(made.parameters()))
    ]
    with PerSampleNorms(made, check="never") as norms:
        loss = (weights * wave(made(x), weights)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        for parameter, grad in zip(made.parameters(), plain, strict=True):
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-12, atol=1e-14)
        with pytest.raises(RuntimeError, match="second backward pass"):
            norms.take()


def test_complex_parameters():
    made = Formula(lambda m, x: torch.view_as_real(torch.tanh(F.linear(x.to(torch.complex128), m.a) * m.b)))
    generator = torch.Generator().manual_seed(0)
    for name, shape in {"a": (4, D), "b": (4,)}.items():
        value = torch.randn(shape, dtype=torch.complex128, generator=generator)
        made.register_parameter(name, nn.Parameter(value))
    x, expected = numbers(K, T, D), []
    for k in range(K):
        grads = torch.autograd.grad(wave(made(x[k : k + 1]), torch.tensor([k])).sum(), list(made.parameters()))
        expected.append(torch.cat([grad.flatten() for grad in grads]).abs().norm())
    with PerSampleNorms(made, check="always") as norms:
        wave(made(x), torch.arange(K)).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4])
def test_nearly_equal_tokens_lose_no_digits(spread):
    """Σₜ gₜ ⊗ xₜ with Σₜ gₜ = 0 is small against its terms: the Gram form would lose all digits in float32."""
    tokens = numbers(K, 1, 64) + spread * numbers(K, 8, 64)
    slopes = numbers(K, 8, 64)
    slopes = slopes - slopes.mean(1, keepdim=True)
    made = randomize(nn.Sequential(nn.Identity(), nn.Softsign(), nn.Linear(64, 64, bias=False)))
    expected = torch.einsum("kta,ktb->kab", slopes, F.softsign(tokens)).flatten(1).norm(dim=1)
    with PerSampleNorms(made.float()) as norms:
        (made(tokens.float()) * slopes.float()).sum().backward()
        torch.testing.assert_close(norms.take().double(), expected, rtol=2e-3, atol=0.0)
