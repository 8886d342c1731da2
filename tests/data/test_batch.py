"""A selected batch behaves as its data does, and moves with all that is in it."""

import copy
import dataclasses
import pickle
from collections import OrderedDict, UserDict
from types import MappingProxyType

import pytest
import torch

from adamcb.data import SelectedBatch
from adamcb.selection import UniformSelection
from tests.data.datasets import Pair, Record

X, Y = torch.ones(4, 2), torch.arange(4)


def batch_of(data):
    return SelectedBatch(data, UniformSelection(10, 4, generator=torch.Generator().manual_seed(0)).draw())


def test_a_batch_unpacks_like_its_data():
    x, y = batch_of([X, Y])
    assert x is X
    assert y is Y


def test_a_batch_of_a_dict_has_its_items_and_keys():
    batch = batch_of({"x": X, "y": Y})
    assert batch["x"] is X
    assert "y" in batch
    assert len(batch) == 2
    assert list(batch) == ["x", "y"]
    assert dict(**batch) == {"x": X, "y": Y}  # pyright: ignore[reportCallIssue]


def test_a_batch_has_the_attributes_of_its_data():
    batch = batch_of(Pair(X, Y))
    assert batch.y is Y
    with pytest.raises(AttributeError, match="'Pair' object has no attribute 'z'"):
        _ = batch.z


def test_a_batch_cannot_be_assigned_to():
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch_of([X, Y]).data = X  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_batch_can_be_copied_and_pickled(clone):
    batch = batch_of({"x": X})
    twin = clone(batch)
    assert torch.equal(twin["x"], X)
    assert (twin.draw.indices == batch.draw.indices).all()


class Moving:
    """Moves itself in place, and returns nothing."""

    def __init__(self):
        self.device = None

    def to(self, device):
        self.device = device


NESTED = {
    "tensor": (X, lambda data: [data]),
    "list": ([X, Y], list),
    "tuple": ((X, [Y, "text"]), lambda data: [data[0], data[1][0]]),
    "namedtuple": (Pair(X, Y), lambda data: [data.x, data.y]),
    "dict": ({"x": X, "more": {"y": Y, "n": 3}}, lambda data: [data["x"], data["more"]["y"]]),
    "ordered dict": (OrderedDict(x=X), lambda data: [data["x"]]),
    "user dict": (UserDict(x=X), lambda data: [data["x"]]),
    "read-only mapping": (MappingProxyType({"x": X}), lambda data: [data["x"]]),
    "dataclass": (Record(X, "a", 3), lambda data: [data.x]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_every_tensor_is_moved_and_types_are_kept(kind):
    data, tensors_of = NESTED[kind]
    batch = batch_of(data)
    moved = batch.to("meta", non_blocking=True)
    assert [tensor.device.type for tensor in tensors_of(moved.data)] == ["meta"] * len(tensors_of(data))
    assert [tensor.device.type for tensor in tensors_of(data)] == ["cpu"] * len(tensors_of(data))
    assert type(moved.data) is type(data) or kind == "read-only mapping"
    assert moved.draw is batch.draw


def test_what_can_move_itself_does():
    thing = Moving()
    assert batch_of([thing]).to("meta")[0] is thing
    assert thing.device == torch.device("meta")
    packed = torch.nn.utils.rnn.pack_sequence([X, X[:2]])
    assert batch_of(packed).to("meta").data.data.device.type == "meta"


def test_what_is_no_tensor_stays_as_it_is():
    data = ["text", 3, None]
    assert batch_of(data).to("meta").data == data
