"""The parts that gradients are made of: their cheap and their plain form agree, and so do sums of several."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from adamcb.gradnorm import PerSampleNorms, _patches
from adamcb.gradnorm._batch import Batch, Mixed, Owners, rows, split
from adamcb.gradnorm._parts import Dense, Lookup, Outer, joint_square_norms
from adamcb.gradnorm._patches import Patches, Window, prefers_forming
from adamcb.gradnorm._record import TracedPass
from adamcb.gradnorm._trace import Tracer
from tests.gradnorm.checking import check, randomize
from tests.reference.gradnorm import norms_by_vmap, norms_one_by_one, wave

GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR)


def outer(positions: int, left: int = 5, right: int = 3) -> Outer:
    return Outer(numbers(4, 1, positions, left), numbers(4, 1, positions, right), (left, right))


def lookup(count: int) -> Lookup:
    return Lookup(torch.randint(5, (4, count), generator=GENERATOR), numbers(4, count, 3), (5, 3))


PARTS = {
    "one position": outer(1),
    "Gram form": Outer(numbers(4, 1, 3, 40), numbers(4, 1, 3, 30), (40, 30)),
    "formed": outer(9),
    "groups": Outer(numbers(4, 2, 3, 2), numbers(4, 2, 3, 6), (4, 6)),
    "transposed": Outer(numbers(4, 1, 3, 2), numbers(4, 1, 3, 6), (6, 2), transposed=True),
    "lookup": lookup(7),
    "dense": Dense(numbers(4, 5, 3)),
    "patches": Patches(
        numbers(4, 1, 6, 5, 5), numbers(4, 1, 8, 3, 3), (8, 3, 3, 3), Window((3, 3), (2, 2), (1, 1), (1, 1), 2)
    ),
    "patches, Gram form": Patches(
        numbers(4, 1, 40, 3, 3), numbers(4, 1, 40, 3, 3), (40, 40, 3, 3), Window((3, 3), (1, 1), (1, 1), (1, 1), 1)
    ),
    "patches, channels first": Patches(
        numbers(4, 1, 1, 6, 7), numbers(4, 1, 2, 6, 5), (2, 1, 3, 3), Window((3, 3), (1, 1), (1, 0), (1, 1), 1)
    ),
    "patches, channels last, strides and dilation": Patches(
        numbers(4, 1, 5, 9, 8), numbers(4, 1, 2, 4, 3), (2, 5, 3, 2), Window((3, 2), (2, 3), (1, 1), (2, 3), 1)
    ),
    "patches of one pixel": Patches(
        numbers(4, 1, 5, 3, 3), numbers(4, 1, 2, 3, 3), (2, 5, 1, 1), Window((1, 1), (1, 1), (0, 0), (1, 1), 1)
    ),
    "patches in space": Patches(
        numbers(4, 1, 2, 4, 3, 5),
        numbers(4, 1, 3, 4, 2, 2),
        (3, 2, 3, 2, 3),
        Window((3, 2, 3), (1, 1, 2), (1, 0, 0), (1, 1, 1), 1),
    ),
    "patches of several images": Patches(
        numbers(4, 2, 3, 5), numbers(4, 2, 2, 4), (2, 3, 2), Window((2,), (1,), (0,), (1,), 1)
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_norms_are_those_of_the_gradients(name):
    gradients = PARTS[name].dense()
    expected = gradients.flatten(1).square().sum(1)
    torch.testing.assert_close(PARTS[name].square_norms(), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if hasattr(part, "total")])
def test_totals_are_the_sum_of_the_gradients(name):
    part = PARTS[name]
    total, norms = part.formed()
    torch.testing.assert_close(total, part.dense().sum(0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(part.total(), part.dense().sum(0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(norms, part.dense().flatten(1).square().sum(1), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("large_layer", [0, 1 << 18])
@pytest.mark.parametrize("numbers_at_once", [1, 150])
@pytest.mark.parametrize("name", [name for name in PARTS if name.startswith("patches")])
def test_patches_are_formed_in_pieces_by_both_ways(name, numbers_at_once, large_layer, monkeypatch):
    for constant in ("PIECE", "IMAGES"):
        monkeypatch.setattr(_patches, constant, numbers_at_once)
    monkeypatch.setattr(_patches, "LARGE_LAYER", large_layer)
    total, norms = PARTS[name].formed()
    torch.testing.assert_close(total, PARTS[name].dense().sum(0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(norms, PARTS[name].dense().flatten(1).square().sum(1), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("positions", [1, 2, 9])
def test_bias_counts_as_one_more_input(positions):
    part = Outer(numbers(4, 1, positions, 30), numbers(4, 1, positions, 20), (30, 20))
    expected = part.square_norms() + part.bias().square_norms()
    torch.testing.assert_close(part.square_norms(with_bias=True), expected, rtol=1e-12, atol=0.0)


KINDS = {"outer": lambda: outer(2), "lookup": lambda: lookup(3), "dense": lambda: Dense(numbers(4, 5, 3))}


@pytest.mark.parametrize("kinds", list(itertools.combinations_with_replacement(KINDS, 3)))
def test_sums_of_parts_have_their_cross_terms(kinds):
    parts = [KINDS[kind]() for kind in kinds]
    expected = sum(part.dense() for part in parts).flatten(1).square().sum(1)  # type: ignore[union-attr]
    torch.testing.assert_close(joint_square_norms(parts), expected, rtol=1e-12, atol=0.0)


def test_both_forms_of_convolution_are_chosen_somewhere():
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1)
    assert prefers_forming((32, 32), (32, 32), (64, 64, 3, 3), window)
    assert not prefers_forming((4, 4), (4, 4), (512, 512, 3, 3), window)
    assert Outer.prefers_forming(1024, 64, 64)
    assert not Outer.prefers_forming(4, 512, 512)


def test_samples_are_found_wherever_they_are_folded():
    tensor = torch.arange(24).reshape(2, 12)  # dimension 1 is outer 2 × samples 3 × inner 2
    batch = Batch(1, 3, inner=2)
    owners = (torch.arange(12) // 2) % 3
    for sample, part in enumerate(split(tensor, batch)):
        assert torch.equal(part, tensor[:, owners == sample])
    assert torch.equal(rows(tensor.unsqueeze(-1), batch)[1].flatten(), tensor[:, owners == 1].flatten())


VIEWS = {
    "view": lambda x: x.view(20, 3),
    "flatten": lambda x: x.flatten(1),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(1, 2, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "select": lambda x: x.select(1, 2),
    "__getitem__": lambda x: x[:, None, 1:3],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "expand": lambda x: x.unsqueeze(1).expand(5, 2, 4, 3),
    "stack": lambda x: torch.stack([x, x], 0),
    "cat": lambda x: torch.cat([x, x], 0),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 0),
    "sum": lambda x: x.sum(1),
    "einsum": lambda x: torch.einsum("kti->itk", x),
    "gather": lambda x: x.gather(1, torch.tensor([3, 1]).view(1, 2, 1).expand(len(x), 2, 3)),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 2),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("samples", [1, 5])
def test_layout_follows_an_operation(name, samples):
    """Numbers that name their sample go through the operation; the layout must say the same."""
    if samples == 1 and name in ("view", "expand"):
        pytest.skip("written for five samples")
    owner = torch.arange(samples, dtype=torch.float64).view(samples, 1, 1).expand(samples, 4, 3).contiguous()
    tracer = Tracer(TracedPass(0, print))
    tracer.mark_inputs(owner)
    with tracer:
        result = VIEWS[name](owner)
    batch: Any = tracer.mark_of(result)
    scale = 4.0 if name == "sum" else 1.0  # a sum over four positions
    for sample, part in enumerate(split(result, batch)):
        assert torch.equal(part, torch.full_like(part, sample * scale))


MOVES = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "index": lambda x: x[torch.tensor([1, 0, 4, 2, 3])],
    "index_select": lambda x: x.index_select(0, torch.tensor([4, 4, 0, 1])),
    "gather": lambda x: x.gather(0, torch.tensor([3, 1, 0, 2, 4]).view(5, 1, 1).expand(5, 4, 3)),
    "mask": lambda x: x[x[:, 0, 0] > 1],
    "mask of two dimensions": lambda x: x[(x[:, :, 0] + torch.arange(4)) % 3 > 0],
    "cat of pieces": lambda x: torch.cat([x[3:], x[:2]]),
    "a position of each": lambda x: x[torch.arange(5), torch.tensor([0, 3, 1, 1, 2])],
}


@pytest.mark.parametrize("name", MOVES)
def test_samples_that_change_places_are_followed(name):
    owner = torch.arange(5, dtype=torch.float64).view(5, 1, 1).expand(5, 4, 3).contiguous()
    tracer = Tracer(TracedPass(0, print))
    tracer.mark_inputs(owner)
    with tracer:
        result = MOVES[name](owner)
    batch = tracer.mark_of(result)
    assert isinstance(batch, Batch)
    assert torch.equal(batch.owner(len(result)), result.flatten(1)[:, 0].long())


MIXES = {
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "attention over the batch": lambda x: x @ x.t(),
    "mixup": lambda x: x + x[torch.tensor([1, 0, 2])],
    "centered": lambda x: x - x.mean(0),
    "norm": lambda x: x / x.norm(),
    "unknown": torch.cov,
}


@pytest.mark.parametrize("name", MIXES)
def test_samples_that_are_mixed_are_not_taken_for_single_ones(name):
    tracer, inputs = Tracer(TracedPass(0, print)), numbers(3, 2).requires_grad_()
    tracer.mark_inputs(inputs)
    with tracer:
        result = MIXES[name](inputs)
    assert isinstance(tracer.mark_of(result), Mixed)


def test_ragged_rows_are_gathered_by_sample():
    owners = Owners(torch.tensor([2, 0, 2, -1, 0, 2]), 3)
    rows_of = owners.gather(torch.arange(6.0).view(6, 1), 0)
    assert rows_of.squeeze(-1).tolist() == [[1.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 5.0]]


@pytest.mark.parametrize("frozen", [None, "1.weight", "1.bias", "3.weight", "3.bias"])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_dense_networks_take_the_short_way(frozen, bias, monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias))
    model = randomize(model.double())
    if frozen in dict(model.named_parameters()):
        model.get_parameter(frozen).requires_grad_(False)
    monkeypatch.setattr(Tracer, "__enter__", lambda self: pytest.fail("watched"))
    check(model, numbers(5, 2, 3), norms_by_vmap)


def test_short_way_is_left_when_the_model_changes():
    model = randomize(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double())
    inputs = numbers(5, 3)
    with PerSampleNorms(model) as norms:
        for tied in (False, True):
            if tied:
                model[2].weight = model[0].weight
            wave(model(inputs), torch.arange(5)).sum().backward()
            expected = norms_one_by_one(copy.deepcopy(model), inputs)
            torch.testing.assert_close(norms.take(), expected, rtol=1e-10, atol=0.0)
