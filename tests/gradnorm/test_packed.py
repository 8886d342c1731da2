"""Packed sequences of different lengths, against one backward pass a sequence. K = 4, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
)
from torch.utils.checkpoint import checkpoint

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_uses import numbers
from tests.reference.gradnorm import wave

K, T, D, H = 4, 6, 3, 2
SORTED, UNSORTED = torch.tensor([6, 4, 3, 1]), torch.tensor([3, 6, 1, 4])
PHASES = torch.arange(K)


class Tagger(nn.Module):
    """Words, a recurrent layer over packed sequences, and a head for every position or for the last state."""

    def __init__(
        self, kind: str = "LSTM", *, batch_first: bool = True, pool: str = "positions", **options: Any
    ) -> None:
        super().__init__()
        self.words, self.pool, self.batch_first = nn.Embedding(7, D), pool, batch_first
        self.body = getattr(nn, kind)(D, H, batch_first=batch_first, **options)
        width = options.get("proj_size") or H
        self.head = nn.Linear(width * (1 + options.get("bidirectional", False)), 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words = self.words(tokens)
        words = words if self.batch_first else words.transpose(0, 1)
        in_order = bool((lengths.diff() <= 0).all())
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=self.batch_first, enforce_sorted=in_order)
        results, state = self.body(packed)
        if self.pool == "state":
            state = state if isinstance(state, tuple) else (state,)
            directions = 2 if self.body.bidirectional else 1
            return torch.cat([self.head(s[-directions:].transpose(0, 1).flatten(1)) for s in state], 1)
        padded, found = pad_packed_sequence(results, batch_first=self.batch_first, total_length=T)
        padded = padded if self.batch_first else padded.transpose(0, 1)
        if self.pool == "last":
            return self.head(padded[torch.arange(len(tokens)), found - 1])
        return torch.where((torch.arange(T) < found.unsqueeze(1)).unsqueeze(2), self.head(padded), 0.0)


def compare(model: Any, tokens: Tensor, lengths: Tensor, check: str = "always") -> None:
    """Compare norms with one backward pass a sequence, and the gradient with the sum of theirs."""
    model, parameters = model.double(), list(model.parameters())
    expected = []
    total: Any = [torch.zeros_like(parameter) for parameter in parameters]
    for k in range(K):
        model.zero_grad()
        wave(model(tokens[k : k + 1], lengths[k : k + 1]), PHASES[k : k + 1]).sum().backward()
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        expected.append(torch.cat([grad.flatten() for grad in grads]).norm())
        total = [before + (k + 1) * grad for before, grad in zip(total, grads, strict=True)]
    model.zero_grad()
    with PerSampleNorms(model, check=check) as norms:
        ((PHASES + 1) * wave(model(tokens, lengths), PHASES)).sum().backward()
        torch.testing.assert_close(norms.take() / (PHASES + 1), torch.stack(expected), rtol=1e-8, atol=0.0)
    for parameter, grad in zip(parameters, total, strict=True):
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-9, atol=1e-12)


def words(seed: int = 0) -> Tensor:
    return torch.randint(7, (K, T), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("check", ["always", "never"])
@pytest.mark.parametrize("lengths", [SORTED, UNSORTED], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_packed_sequences_are_measured(kind, lengths, check):
    compare(randomize(Tagger(kind)), words(), lengths, check)


OPTIONS: Any = [
    *({"num_layers": layers, "bidirectional": both} for layers, both in itertools.product((1, 2), (False, True))),
    {"batch_first": False, "num_layers": 2},
    {"bias": False, "bidirectional": True},
]


@pytest.mark.parametrize("check", ["always", "never"])
@pytest.mark.parametrize("pool", ["positions", "last", "state"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_all_forms_of_recurrent_layers_take_packed_sequences(kind, options, pool, check):
    compare(randomize(Tagger(kind, pool=pool, **options)), words(), UNSORTED, check)


@pytest.mark.parametrize("pool", ["positions", "state"])
def test_projections_of_packed_sequences(pool):
    if pool == "positions":
        compare(randomize(Tagger(pool=pool, proj_size=1, bidirectional=True)), words(), UNSORTED)
    else:
        with pytest.raises(RuntimeError):  # states and cells have other widths: the model itself fails
            compare(randomize(Tagger(pool=pool, proj_size=1)), words(), UNSORTED)


class Written(nn.Module):
    """Runs a function of itself on tokens and lengths."""

    def __init__(self, function: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(7, D), nn.LSTM(D, H), nn.Linear(H, 2)
        self.start, self.function = nn.Linear(D, H), function

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.function(self, tokens, lengths)


def _pack(rows: Tensor, lengths: Tensor) -> PackedSequence:
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def _again(pack: PackedSequence, data: Tensor) -> PackedSequence:
    return PackedSequence(data, pack.batch_sizes, pack.sorted_indices, pack.unsorted_indices)


def _tokens_packed(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    pack = _pack(tokens, lengths)
    body = m.body(_again(pack, m.words(pack.data)))[0]
    return pad_packed_sequence(_again(body, m.head(body.data)), batch_first=True, total_length=T)[0]


def _list_packed(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    rows = m.words(tokens)
    parts = [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
    pack = pack_sequence(parts, enforce_sorted=False)
    return m.head(pad_packed_sequence(m.body(pack)[0], total_length=T)[0]).transpose(0, 1) * _mask(lengths)


def _list_padded(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    rows = m.words(tokens)
    padded = pad_sequence([rows[k, :length] for k, length in enumerate(lengths.tolist())], batch_first=True)
    body = m.body(padded.transpose(0, 1))[0].transpose(0, 1)
    return m.head(F.pad(body, (0, 0, 0, T - padded.shape[1]))) * _mask(lengths)


def _unpacked(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    rows = m.head(pad_sequence(unpack_sequence(m.body(_pack(m.words(tokens), lengths))[0]), batch_first=True))
    return (rows * _mask(lengths)[:, : rows.shape[1]]).sum(1)


def _first_state(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    rows = m.words(tokens)
    start = m.start(rows[:, 0]).unsqueeze(0)
    return m.head(m.body(_pack(rows, lengths), (start, 0.5 * start))[1][1][0])


def _sums_of_rows(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    body = m.body(_pack(m.words(tokens), lengths))[0]
    owner = torch.cat([body.sorted_indices[: int(n)] for n in body.batch_sizes])
    rows = m.head(body.data)
    return torch.zeros(len(tokens), 2, dtype=rows.dtype).index_add(0, owner, rows)


def _checkpointed(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    rows = m.words(tokens)
    return checkpoint(lambda r: m.head(m.body(_pack(r, lengths))[1][0][0]), rows, use_reentrant=True)  # type: ignore


def _doubled(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Two sequences from each sample, of which one is shorter."""
    rows, shorter = m.words(tokens), (lengths + 1) // 2
    both = torch.cat([rows, rows.flip(1)])
    states = m.body(_pack(both, torch.cat([lengths, shorter])))[1][0][0]
    return m.head(states.view(2, len(tokens), H).sum(0))


def _mask(lengths: Tensor) -> Tensor:
    return (torch.arange(T) < lengths.unsqueeze(1)).unsqueeze(2)


FORMS = [
    *(_tokens_packed, _list_packed, _list_padded, _unpacked, _first_state),
    *(_sums_of_rows, _checkpointed, _doubled),
]


@pytest.mark.parametrize("check", ["always", "never"])
@pytest.mark.parametrize("function", FORMS, ids=lambda function: function.__name__.strip("_"))
def test_packed_data_are_followed_wherever_they_go(function, check):
    compare(randomize(Written(function)), words(), UNSORTED, check)


def test_dropout_between_layers_draws_what_torch_draws():
    model, lengths = randomize(Tagger(num_layers=3, dropout=0.4)).double(), UNSORTED
    torch.manual_seed(3)
    expected = model(words(), lengths)
    with PerSampleNorms(model):
        torch.manual_seed(3)
        torch.testing.assert_close(model(words(), lengths), expected, rtol=1e-12, atol=1e-14)


class OnPacks(nn.Module):
    """Takes packed sequences, and returns them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(D, H), nn.Linear(H, 2)

    def forward(self, pack: PackedSequence) -> PackedSequence:
        body = self.body(pack)[0]
        return _again(body, self.head(body.data))


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_models_take_and_return_packed_sequences(enforce_sorted):
    model, rows, lengths = randomize(OnPacks().double()), numbers(K, T, D), SORTED if enforce_sorted else UNSORTED
    expected = []
    for k in range(K):
        loss = wave(model(_pack(rows[k : k + 1], lengths[k : k + 1])).data, PHASES[k : k + 1]).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        expected.append(torch.cat([grad.flatten() for grad in grads]).norm())
    pack = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=enforce_sorted)
    with PerSampleNorms(model, check="always") as norms:
        result = model(pack)
        order = PHASES if enforce_sorted else result.sorted_indices
        owner = torch.cat([order[: int(n)] for n in result.batch_sizes])
        losses = torch.zeros(K, dtype=rows.dtype).index_add(0, owner, wave(result.data, owner))
        losses.sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-8, atol=0.0)
