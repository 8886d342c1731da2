"""The real files, from $ADAMCB_DATA."""

import os

import pytest
import torch

from adamcb.lab.tasks.datasets import ImageData, load_dataset

pytestmark = pytest.mark.skipif("ADAMCB_DATA" not in os.environ, reason="set ADAMCB_DATA to the folder of the datasets")


def check_splits(data: ImageData, train: int, test: int) -> None:
    for part, size in ((data.train, train), (data.test, test)):
        images, labels = part.tensors
        assert images.shape == (size, *data.image_shape)
        assert images.dtype == torch.float32
        assert labels.shape == (size,)
        assert labels.unique().tolist() == list(range(10))


def test_mnist_is_the_canonical_one():
    data = load_dataset("mnist", download=False)
    check_splits(data, 60_000, 10_000)
    assert data.note == ""
    assert data.train.tensors[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.tensors[1][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # The published moments of MNIST.
    assert (data.mean[0], data.std[0]) == pytest.approx((0.1307, 0.3081), abs=5e-5)


def test_fashion_mnist_is_the_canonical_one():
    data = load_dataset("fashion-mnist", download=False)
    check_splits(data, 60_000, 10_000)
    assert data.note == ""
    assert [data.class_names[label] for label in data.train.tensors[1][:3]] == [
        "Ankle boot",
        "T-shirt/top",
        "T-shirt/top",
    ]
    assert (data.mean[0], data.std[0]) == pytest.approx((0.2860, 0.3530), abs=5e-5)


def test_cifar10_has_its_shape_and_colors():
    data = load_dataset("cifar10", download=False)
    check_splits(data, 50_000, 10_000)
    assert torch.bincount(data.train.tensors[1]).tolist() == [5000] * 10
    assert torch.bincount(data.test.tensors[1]).tolist() == [1000] * 10
    # The published moments in the order red, green, blue; copies that went through JPEG differ in the third decimal.
    assert data.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=2e-3)
    assert data.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=4e-3)
    images, labels = data.train.tensors
    ships, frogs = (images[labels == data.class_names.index(name)].mean((0, 2, 3)) for name in ("ship", "frog"))
    assert ships[2] > ships[0]  # Water and sky are blue,
    assert frogs[2] < frogs[1]  # and frogs are not.
    rows = (images[:2000, :, 1:] - images[:2000, :, :-1]).abs().mean()
    assert rows < 0.4, "neighboring pixels of a picture that is read right are alike"


def test_learned_digits_are_told_apart():
    """Nearest class mean on MNIST reaches 82 %; shuffled labels or pixels in the wrong place would not."""
    data = load_dataset("mnist", download=False)
    (images, labels), (test_images, test_labels) = (part.tensors for part in (data.train, data.test))
    means = torch.stack([images[labels == digit].mean(0).flatten() for digit in range(10)])
    guesses = torch.cdist(test_images.flatten(1), means).argmin(1)
    assert (guesses == test_labels).float().mean().item() == pytest.approx(0.8203, abs=0.001)
