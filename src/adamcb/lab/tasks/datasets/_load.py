"""From a dataset's name to the dataset."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from adamcb import _checks
from adamcb.lab.tasks.datasets._cifar import CIFAR10, load_cifar10
from adamcb.lab.tasks.datasets._folder import load_folder
from adamcb.lab.tasks.datasets._idx import FASHION_MNIST, MNIST, load_idx
from adamcb.lab.tasks.datasets._images import ImageData, RawImages, finish, stratified_subset
from adamcb.lab.tasks.datasets._places import data_roots

DATASET_NAMES = ("digits", "mnist", "fashion-mnist", "cifar10")
DIGITS_TEST_SHARE = 0.2
DIGITS_SPLIT_SEED = 0


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    fraction: float = 1.0,
    fraction_seed: int = 0,
    download: bool = True,
) -> ImageData:
    """Return an image dataset, standardized and in memory.

    Pixels are scaled to [0, 1], then standardized with the mean and standard deviation of each channel over the whole
    training set. MNIST and Fashion-MNIST are verified by checksum; a CIFAR-10 copy that cannot be verified is used,
    with a `note` on the result and a warning in the log.

    Args:
        name: one of `DATASET_NAMES`, or the path of a folder of class folders with images.
        data_dir: where to look for files first; then come the folders of $ADAMCB_DATA, then the user's cache, into
            which missing files are fetched.
        fraction: the part of each split that is kept, in (0, 1]: that share of every class, at least one sample of
            each, drawn at random by `fraction_seed` and left in the original order.
        fraction_seed: decides which samples; nothing else does. A larger fraction contains a smaller one.
        download: whether missing files may be fetched.

    Raises:
        ValueError: the name is unknown.
        DataFileError: a file is damaged or not what it should be; the message names it.
        FileNotFoundError: files are missing and could not be fetched; the message says which go where.

    Example:
        >>> digits = load_dataset("digits")
        >>> digits.image_shape, len(digits.train), len(digits.test)
        ((1, 8, 8), 1438, 359)
    """
    _checks.real("fraction", fraction, low=0.0, high=1.0, low_open=True)
    _checks.integer("fraction_seed", fraction_seed, low=0)
    raw = _read(name, data_dir, download)
    title = name if name in DATASET_NAMES else Path(name).resolve().name
    return finish(raw, title, fraction=fraction, fraction_seed=fraction_seed)


def _read(name: str, data_dir: str | os.PathLike[str] | None, download: bool) -> RawImages:
    if name not in DATASET_NAMES:
        if not Path(name).is_dir():
            _checks.one_of("name", name, (*DATASET_NAMES, "a folder of class folders"))
        return load_folder(Path(name))
    if name == "digits":
        return _read_digits()
    roots = data_roots(data_dir)
    if name == "cifar10":
        return load_cifar10(CIFAR10, roots, download=download)
    return load_idx(MNIST if name == "mnist" else FASHION_MNIST, roots, download=download)


def _read_digits() -> RawImages:
    """Read scikit-learn's 8×8 digits (pixels from 0 to 16), a fifth of every class set apart for testing."""
    # Imported here because scikit-learn takes a second to import, which the other datasets need not wait for.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(labels).long()
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[stratified_subset(labels, DIGITS_TEST_SHARE, seed=DIGITS_SPLIT_SEED)] = True
    splits = (images[~in_test], labels[~in_test], images[in_test], labels[in_test])
    return RawImages(*splits, class_names=tuple("0123456789"), white=16)
