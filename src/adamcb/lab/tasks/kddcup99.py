"""KDD Cup 1999, the 10 % file: connections of a network, 22 kinds of attack, from 280,790 rows down to 2.

The file is kddcup99/kddcup.data_10_percent.gz. Two thirds of its rows repeat another one. Equal rows all go to the same
side of the split: otherwise the test set would hold what was trained on.
"""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from adamcb.lab.tasks.datasets import DataFileError, find_file
from adamcb.lab.tasks.rare_events import RARE_METRICS
from adamcb.lab.tasks.tables import build_mlp, split, standardized
from adamcb.lab.tasks.task import Task

NUM_COLUMNS = 42
WORDS = (1, 2, 3)  # columns that hold words: protocol, service and flag
LARGE = (0, 4, 5)  # columns whose logarithm is taken: seconds, and bytes both ways
TEST_SHARE = 0.2


def kddcup99(data_dir: str | None = None, *, validation: bool = False) -> Task:
    """Return the task: an MLP that tells the 23 classes apart.

    With `validation=True` it never sees the test rows: another fifth is held out, to choose settings on.
    """
    path = find_file("kddcup99", "kddcup.data_10_percent.gz", data_dir)
    train, test, num_classes = read_kddcup99(path, validation=validation)
    return Task(
        "kddcup99-validation" if validation else "kddcup99",
        partial(build_mlp, train.tensors[0].shape[1], num_classes),
        train,
        test,
        metrics=RARE_METRICS,
        batch_size=512,
    )


def read_kddcup99(path: Path, *, validation: bool = False) -> tuple[TensorDataset, TensorDataset, int]:
    """Return training and test rows, and how many classes there are; words become one column for each word.

    With `validation=True` the test rows are left out, and about as many others are returned in their place.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = [line.rstrip("\n.") for line in file]
        # Every line is read once, however often it is there; row[i] is the place of line i among those that differ.
        places = {line: place for place, line in enumerate(dict.fromkeys(lines))}
        row = np.array([places[line] for line in lines])
        cells = np.array([line.split(",") for line in places])
        if not (cells.ndim == 2 and cells.shape[1] == NUM_COLUMNS):
            raise ValueError(f"not {NUM_COLUMNS} columns everywhere")
        numbers = np.delete(cells, (*WORDS, NUM_COLUMNS - 1), axis=1).astype(np.float64)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataFileError(f"{path} must be the 10 % file of KDD Cup 1999, gzipped: {error}.") from error
    large = [place - sum(word < place for word in WORDS) for place in LARGE]
    numbers[:, large] = np.log1p(numbers[:, large])
    words = [cells[:, [place]] == np.unique(cells[:, place]) for place in WORDS]
    names, labels = np.unique(cells[:, -1], return_inverse=True)
    # A checksum of the line decides where it goes, so rows that are equal stay together.
    share = np.array([zlib.crc32(line.encode()) / 2**32 for line in places])[row]
    if validation:
        kept = share >= TEST_SHARE
        row, share = row[kept], share[kept] - TEST_SHARE
    in_test = share < TEST_SHARE
    features = standardized(np.concatenate([numbers, *words], axis=1)[row], in_test)
    train, test = split(features, torch.from_numpy(labels[row]), in_test)
    return train, test, len(names)
