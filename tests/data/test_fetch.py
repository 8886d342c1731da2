"""Samples of every kind, fetched in as few calls as the dataset allows, give what torch's DataLoader gives."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from adamcb.data import BanditLoader
from adamcb.selection import ReplacementBandit, UniformSelection
from tests.data.datasets import INDEX_OF, SAMPLES, Batched, Doubled, Made, Record, Short, Sorted, tensors


def selection(n=12, k=4, seed=0):
    return UniformSelection(n, k, generator=torch.Generator().manual_seed(seed))


def plain_batches(dataset, drawn, collate_fn=None):
    """Load the same draws by torch's DataLoader alone."""
    return list(DataLoader(dataset, batch_sampler=[draw.indices.tolist() for draw in drawn], collate_fn=collate_fn))


def assert_same(left, right):
    if isinstance(right, torch.Tensor):
        assert torch.equal(left, right)
        assert left.dtype == right.dtype
    elif isinstance(right, dict):
        assert left.keys() == right.keys()
        [assert_same(left[key], right[key]) for key in right]
    elif isinstance(right, (list, tuple)):
        assert type(left) is type(right)
        [assert_same(a, b) for a, b in zip(left, right, strict=True)]
    else:
        assert left == right


@pytest.mark.parametrize("maker", [Made, Batched])
@pytest.mark.parametrize("kind", ["tensor", "tuple", "namedtuple", "dict"])
def test_batches_are_those_of_a_plain_dataloader(maker, kind):
    batches = list(BanditLoader(maker(12, kind), selection()))
    for batch, plain in zip(batches, plain_batches(maker(12, kind), [b.draw for b in batches]), strict=True):
        assert_same(batch.data, plain)


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("maker", [Made, Batched])
def test_each_row_is_the_sample_that_was_drawn(maker, kind):
    for batch in BanditLoader(maker(12, kind), selection()):
        assert INDEX_OF[kind](batch).tolist() == batch.draw.indices.tolist()


def test_dataclasses_are_merged_field_by_field():
    batch = next(iter(BanditLoader(Made(12, "dataclass"), selection())))
    assert isinstance(batch.data, Record)
    assert batch.x.shape == (4, 2)
    assert batch.name == [f"sample {index}" for index in batch.draw.indices]


def test_a_collate_fn_gets_the_list_of_samples():
    def stack_first(samples):
        assert type(samples) is list
        assert all(type(sample) is Record for sample in samples)
        return torch.stack([sample.x for sample in samples])

    for batch in BanditLoader(Made(12, "dataclass"), selection(), collate_fn=stack_first):
        assert batch.data[:, 0].tolist() == batch.draw.indices.tolist()


def test_a_dataset_with_getitems_is_called_once_a_batch():
    dataset = Batched(12)
    list(BanditLoader(dataset, selection()))
    assert dataset.calls == 3


@pytest.mark.parametrize("kind", ["tensor", "tuple", "namedtuple", "dict"])
def test_getitems_is_asked_in_ascending_order_and_the_batch_keeps_the_order_of_the_draw(kind):
    dataset = Sorted(12, kind)
    batches = list(BanditLoader(dataset, selection()))
    assert dataset.asked == [sorted(batch.draw.indices.tolist()) for batch in batches]
    assert dataset.asked != [batch.draw.indices.tolist() for batch in batches]
    for batch, plain in zip(batches, plain_batches(Made(12, kind), [b.draw for b in batches]), strict=True):
        assert_same(batch.data, plain)


def test_samples_that_are_drawn_twice_come_twice():
    selection = ReplacementBandit(5, 5, generator=torch.Generator().manual_seed(0))
    (batch,) = BanditLoader(Sorted(5), selection)
    assert len(set(batch.draw.indices.tolist())) < 5
    assert batch[1].tolist() == batch.draw.indices.tolist()


def test_with_a_collate_fn_getitems_is_asked_in_the_order_of_the_draw():
    dataset = Batched(12)
    for batch in BanditLoader(dataset, selection(), collate_fn=lambda samples: [index for _, index in samples]):
        assert batch.data == batch.draw.indices.tolist()


def test_getitems_that_loses_samples_is_an_error():
    with pytest.raises(ValueError, match=r"must return one sample per index, got 3 for 4 indices"):
        next(iter(BanditLoader(Short(12), selection())))


def test_whole_batches_from_getitems_need_a_collate_fn_only():
    loader = BanditLoader(Short(12), selection(), collate_fn=len)
    assert [batch.data for batch in loader] == [3, 3, 3]


# TensorDatasets, and those below Subsets with indices of every type; the second entry maps index to sample.
GATHERED = {
    "whole": (tensors(12), range(12)),
    "list": (Subset(tensors(20), [*range(19, 7, -1)]), range(19, 7, -1)),
    "range": (Subset(tensors(20), range(8, 20)), range(8, 20)),
    "array": (Subset(tensors(20), np.arange(8, 20)), range(8, 20)),  # pyright: ignore[reportArgumentType]
    "tensor": (Subset(tensors(20), torch.arange(8, 20)), range(8, 20)),  # pyright: ignore[reportArgumentType]
    "negative": (Subset(tensors(20), range(-12, 0)), range(8, 20)),
    "nested": (Subset(Subset(tensors(30), range(29, -1, -1)), range(3, 15)), range(26, 14, -1)),
}


@pytest.mark.parametrize("kind", GATHERED)
@pytest.mark.parametrize("collate_fn", [None, default_collate, lambda samples: default_collate(samples)])
def test_tensors_are_gathered_once_a_batch(monkeypatch, kind, collate_fn):
    dataset, sample_of = GATHERED[kind]
    plain = [dataset[index] for index in range(12)]
    calls = []
    monkeypatch.setattr(Subset, "__getitems__", lambda *_: calls.append("subset"))
    gather = torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *a: calls.append("gather") or gather(*a))
    for batch in BanditLoader(dataset, selection(), collate_fn=collate_fn):
        assert_same(batch.data, default_collate([plain[index] for index in batch.draw.indices]))
        assert batch[1].tolist() == [sample_of[index] for index in batch.draw.indices]
    assert calls == ["gather"] * 2 * 3  # two tensors, three batches


def test_a_tensor_dataset_that_does_more_than_index_is_asked_itself():
    for batch in BanditLoader(Doubled(torch.arange(12.0)), selection()):
        assert batch[0].tolist() == [2 * index for index in batch.draw.indices]
    below = Subset(Doubled(torch.arange(12.0)), range(12))
    for batch in BanditLoader(below, selection()):
        assert batch[0].tolist() == [2 * index for index in batch.draw.indices]


def test_a_batch_does_not_alias_the_dataset():
    dataset = tensors(12)
    x, _ = next(iter(BanditLoader(dataset, selection())))
    before = dataset.tensors[0].clone()
    x.zero_()
    assert torch.equal(dataset.tensors[0], before)


def test_tensors_replaced_between_batches_are_seen():
    dataset = TensorDataset(torch.zeros(12))
    loader = BanditLoader(dataset, selection())
    assert next(iter(loader))[0].sum() == 0
    dataset.tensors = (torch.ones(12),)
    assert next(iter(loader))[0].sum() == 4


@pytest.mark.parametrize("make", [lambda: Made(12), lambda: Batched(12), lambda: tensors(12)])
def test_the_dataset_is_not_changed(make):
    dataset = make()
    before = set(vars(dataset)), set(dir(type(dataset)))
    list(BanditLoader(dataset, selection()))
    assert (set(vars(dataset)), set(dir(type(dataset)))) == before
