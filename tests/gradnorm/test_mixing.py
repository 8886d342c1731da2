"""Operations that mix samples are refused, and those that only move them are followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_uses import numbers
from tests.reference.gradnorm import wave

K, D = 4, 5


class Model(nn.Module):
    """A function between two dense layers, and one of the inputs alone beside it.

    Two results want gradients, so a guard that looks at single results would not see exchanged samples.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.function, self.back = function, back
        self.layer, self.head, self.other = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.function(self.layer(inputs))
        return hidden if self.back is None else self.back(self.head(hidden)), self.other(inputs)


def losses_of(results: Any, size: int) -> Tensor:
    tensors = results if isinstance(results, tuple) else (results,)
    return torch.stack([wave(each, torch.arange(size)) for each in tensors]).sum(0)


def norms_of_losses(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the norms of K backward passes, one from each loss of the batch."""
    losses = losses_of(model(*inputs), len(inputs[0]))
    norms = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
        norms.append(sum(gradient.square().sum() for gradient in gradients if gradient is not None))
    return torch.stack([torch.as_tensor(norm) for norm in norms]).sqrt()


def norms_of_engine(model: nn.Module, *inputs: Tensor, check: str = "never") -> Tensor:
    with PerSampleNorms(model, check=check) as norms:
        losses_of(model(*inputs), len(inputs[0])).sum().backward()
        return norms.take()


def compare(model: nn.Module, *inputs: Tensor) -> None:
    expected = norms_of_losses(model, *inputs)
    for check in ("never", "always"):
        torch.testing.assert_close(norms_of_engine(model, *inputs, check=check), expected, rtol=1e-10, atol=1e-13)


def refuse(model: nn.Module, *inputs: Tensor) -> None:
    for check in ("never", "always"):
        with pytest.raises(RuntimeError, match="mixed|cannot be told apart"):
            norms_of_engine(model, *inputs, check=check)


class SumOfEarlier(torch.autograd.Function):
    """A custom function whose last operation mixes samples, with nothing after it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.cumsum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].flip(0).cumsum(0).flip(0)


def shift_in_place(hidden: Tensor) -> Tensor:
    moved = hidden.clone()
    moved[:-1].add_(hidden[1:])
    return moved


@pytest.mark.parametrize("function", [shift_in_place, SumOfEarlier.apply], ids=["in place", "custom function"])
def test_mixed_result_that_the_model_returns_is_refused(function):
    refuse(randomize(Model(function).double()), numbers(K, 3, D))


class Kernels(nn.Module):
    """A function of the batch and parameters of any shape, beside a dense layer."""

    def __init__(self, function: Callable[..., Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(D, D)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


PAIRS: Any = ([1], [1])
ATTENTION = F.scaled_dot_product_attention
SAME_TWICE = {
    "attention": lambda h: ATTENTION(h, h, h),
    "attention, three dimensions": lambda h: ATTENTION(*[h.unsqueeze(0)] * 3).squeeze(0),
    "mm of one": lambda h: (lambda a: torch.mm(a, a))(h[:, :K]),
    "square of one": lambda h: (lambda a: a @ a)(h[:, :K]),
    "linear": lambda h: F.linear(h, h),
    "linear of two": lambda h: F.linear(h, h.tanh()),
    "cdist": lambda h: torch.cdist(h, h),
    "einsum": lambda h: torch.einsum("id,jd->ij", h, h),
    "tensordot": lambda h: torch.tensordot(h, h, dims=PAIRS),
}


@pytest.mark.parametrize("function", SAME_TWICE.values(), ids=SAME_TWICE.keys())
def test_operation_on_all_pairs_of_samples_is_refused_for_one_tensor_given_twice(function):
    refuse(randomize(Model(function).double()), numbers(K, D))


def test_same_tensor_given_twice_is_no_reason_to_refuse():
    compare(
        randomize(Model(lambda h: ATTENTION(h, h, h) + h * h + h @ h.transpose(1, 2) @ h).double()), numbers(K, K, D)
    )
    compare(
        randomize(Model(lambda h: torch.cat([h, h], 1) + torch.stack([h, h], 1).sum(1).repeat(1, 2, 1)).double()),
        numbers(K, K, D),
    )


MIXED = {
    "topk": lambda h: h.topk(K, 0)[0],
    "kthvalue": lambda h: h.kthvalue(2, 0)[0],
    "vector_norm": lambda h: torch.linalg.vector_norm(h, 2, 0),
    "roll over all": lambda h: h.roll(3),
    "pad": lambda h: F.pad(h, (0, 0, 0, 0, 1, -1)),
    "pad, circular": lambda h: F.pad(h.movedim(0, 2), (1, 1), mode="circular")[..., :K].movedim(2, 0),
    "conv1d without a batch": lambda h: F.conv1d(h[:, 0], numbers(K, K, 3), padding=1),
    "conv2d without a batch": lambda h: F.conv2d(h, numbers(K, K, 3, 3), padding=1),
    "transposed without a batch": lambda h: F.conv_transpose1d(h[:, 0], numbers(K, K, 3), padding=1),
    "kernels of samples": lambda h: F.conv1d(h, h[:, :, :1]),
    "rows of a constant times samples": lambda h: h[:, 0, :K].__rmatmul__(numbers(K, K)),
    "vector through a matrix": lambda h: F.linear(h[:, 0, 0], numbers(K, K)).unsqueeze(1),
    "bags of samples": lambda h: F.embedding_bag(torch.arange(2 * K).view(K, 2) % K, h[:, 0]),
    "bilinear": lambda h: F.bilinear(numbers(K, D), numbers(K, D), h[:, :1, :].expand(K, D, D)),
    "slopes of samples": lambda h: F.prelu(numbers(K, K, D), h[:, 0, 0]),
    "similarity": lambda h: F.cosine_similarity(h, h[:, 0], dim=-1),
    "loss of all pairs": lambda h: F.mse_loss(h[:, 0, 0], h[:, :1, 1], reduction="none"),
    "put and added": lambda h: (
        torch.zeros(K, K, D).double().index_put((torch.tensor([1, 2, 3, 3]),), h, accumulate=True)
    ),
    "shifted by an unknown operation": lambda h: torch.fft.fftshift(h, dim=0),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED.keys())
def test_operation_across_the_batch_is_refused(function):
    refuse(randomize(Model(function).double()), numbers(K, K, D))


MOVED = {
    "roll over all": (lambda h: h.roll(2 * K * D), lambda h: h.roll(-2 * K * D)),
    "roll": (lambda h: h.roll(1, 0), lambda h: h.roll(-1, 0)),
    "flip of two dimensions": (lambda h: h.flip(0, 1), lambda h: h.flip(0, 1)),
    "rows of samples": (
        lambda h: F.embedding(torch.tensor([2, 0, 3, 1]), h[:, 0]),
        lambda h: h[torch.tensor([1, 3, 0, 2])],
    ),
    "copied with broadcasting": (
        lambda h: torch.zeros(K, K, D).double().copy_(h[:, 0]).transpose(0, 1),
        lambda h: h,
    ),
    "cropped": (lambda h: F.pad(torch.cat([h, h]), (0, 0, 0, 0, -K, 0)), lambda h: h),
    "put by a name": (
        lambda h: torch.zeros_like(h).index_put((torch.tensor([2, 0, 3, 1]),), values=h),
        lambda h: h[torch.tensor([2, 0, 3, 1])],
    ),
}


@pytest.mark.parametrize(("there", "back"), MOVED.values(), ids=MOVED.keys())
def test_samples_that_are_moved_are_followed(there, back):
    compare(randomize(Model(there, back).double()), numbers(K, K, D))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize("function", [torch.flipud, lambda h: torch.fft.fftshift(h, dim=0)], ids=["flipud", "fftshift"])
def test_unknown_operation_that_moves_samples_is_refused_whatever_the_size(function, size):
    refuse(randomize(Model(function, function).double()), numbers(size, 3, D))


def test_unknown_operation_is_asked_again_for_another_index():
    calls = iter([[0, 1, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3]])
    place = lambda h: torch.arange(K * D).view(K, D)[next(calls)]  # noqa: E731
    model = randomize(Model(lambda h: torch.zeros(K, D).double().put(place(h), h)).double())
    with PerSampleNorms(model, check="never") as norms:
        losses_of(model(numbers(K, D)), K).sum().backward()
        norms.take()
        losses_of(model(numbers(K, D)), K).sum().backward()
        with pytest.raises(RuntimeError, match="mixed"):
            norms.take()


def test_unknown_operation_is_asked_again_for_samples_in_another_argument():
    both = lambda h: torch.outer(h[:, 0], torch.ones(K).double()) + torch.outer(numbers(K), h[:, 1]).t()  # noqa: E731
    compare(randomize(Model(both).double()), numbers(K, D))


KEPT = {
    "topk": lambda h: h.topk(2)[0],
    "topk of another dimension": lambda h: h.topk(2, 1)[0],
    "topk of vectors": lambda h: h[:, 0].topk(2)[0],
    "topk of the vectors' dimension": lambda h: h[:, 0].topk(2, 1)[0],
    "vector_norm of vectors": lambda h: torch.linalg.vector_norm(h[:, 0], 2, -1).unsqueeze(1),
    "kthvalue": lambda h: h.kthvalue(2)[0],
    "vector_norm": lambda h: torch.linalg.vector_norm(h, 2, -1),
    "distances": lambda h: F.pairwise_distance(h, h.flip(1), 2.0),
    "distances, time first": lambda h: F.pairwise_distance(h.transpose(0, 1), numbers(1, D), 3.0).transpose(0, 1),
    "losses of positions": lambda h: F.cross_entropy(h.movedim(0, 2), torch.ones(3, K).long(), reduction="none").t(),
    "losses of rows": lambda h: F.triplet_margin_loss(h, h.flip(1), numbers(1, 1, D), reduction="none"),
    "losses of elements": lambda h: F.gaussian_nll_loss(h, numbers(D), h[..., 0].exp(), reduction="none"),
    "unknown": lambda h: torch.special.log_ndtr(h),
    "constant of the same type": lambda h: h @ h.transpose(1, 2) + torch.ones(3, 3).tril().type_as(h),
    "constant of the same kind": lambda h: (lambda s: s * torch.ones(3, 3).tril().to(s))(h @ h.transpose(1, 2)),
    "samples of the same kind": lambda h: h.to(h.tanh()) + h.flip(1).type_as(h) + h.sin().view_as(h),
}


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT.keys())
def test_operation_within_samples_is_measured(function):
    compare(randomize(Model(function).double()), numbers(K, 3, D))


def rows_of(inputs: Tensor, number: int, size: int) -> Tensor:
    return (inputs[..., number].abs() * 7).long() % size


TABLES = {
    "masked weight": (lambda m, x: F.linear(m.layer(x), m.a * torch.ones(6, D).tril().to(x)), (6, D)),
    "masked weight of K rows": (lambda m, x: F.linear(m.layer(x), m.a * torch.ones(K, D).tril().type_as(x)), (K, D)),
    "two indices": (lambda m, x: m.layer(x) + m.a[rows_of(x, 0, 6), rows_of(x, 1, 2)], (6, 2, D)),
    "second dimension": (lambda m, x: m.layer(x[:, 0]) + m.a[:, rows_of(x[:, 0], 0, 6)].t(), (D, 6)),
    "second dimension, matrix": (lambda m, x: m.layer(x) + m.a[:, rows_of(x, 0, 6)].movedim(0, -1), (D, 6)),
    "apart": (lambda m, x: m.layer(x) + m.a[rows_of(x, 0, 6), :, rows_of(x, 1, 2)], (6, D, 2)),
    "number in between": (lambda m, x: m.layer(x) + m.a[rows_of(x, 0, 6), 1, rows_of(x, 1, 2)], (6, 3, 2, D)),
    "beside a constant": (lambda m, x: m.layer(x) + m.a[rows_of(x, 0, 6), torch.arange(3)], (6, 3, D)),
    "constant rows, samples behind": (
        lambda m, x: m.layer(x) + m.a[torch.arange(2).view(2, 1, 1), rows_of(x, 0, 6)].sum(0),
        (2, 6, D),
    ),
}


@pytest.mark.parametrize(("function", "shape"), TABLES.values(), ids=TABLES.keys())
def test_use_of_a_table_is_measured(function, shape):
    compare(randomize(Kernels(function, a=shape).double()), numbers(K, 3, D))


class Messages(nn.Module):
    """Two rounds of messages, added into plain zeros. Some nodes get none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.message, self.update = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, owner: Tensor) -> Tensor:
        hidden = self.layer(nodes)
        for _ in range(2):
            zeros = torch.zeros(len(nodes), D, dtype=nodes.dtype)
            hidden = torch.tanh(self.update(zeros.index_add(0, target, self.message(hidden)[source])))
        return hidden


def test_nodes_without_messages_keep_their_sample():
    model = randomize(Messages().double())
    owner = torch.tensor([2, 0, 0, 1, 2, 3, 3, 1, 3])
    source, target = torch.tensor([1, 0, 3, 6, 5, 2]), torch.tensor([2, 4, 7, 5, 8, 2])
    nodes, parameters = numbers(len(owner), D), list(model.parameters())
    losses = torch.zeros(K).double().index_add(0, owner, wave(model(nodes, source, target, owner), torch.arange(9)))
    gradients = [torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses]
    expected = torch.stack([torch.cat([g.flatten() for g in each if g is not None]).norm() for each in gradients])
    for check in ("never", "always"):
        with PerSampleNorms(model, check=check, samples=lambda nodes, source, target, owner: owner) as norms:
            wave(model(nodes, source, target, owner), torch.arange(9)).sum().backward()
            torch.testing.assert_close(norms.take(), expected, rtol=1e-10, atol=1e-13)
