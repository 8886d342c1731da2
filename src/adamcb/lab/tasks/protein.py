"""Protein homology (KDD Cup 2004): rare positives, 1,296 of 145,751 rows, in 153 blocks of one native protein each.

The file is protein/protein.npz with x float32 [n, 74], y [n] in {0, 1} and block [n]. Whole blocks are set apart for
testing: rows of one block are alike, so a split by rows would test on what was trained on.
"""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DataFileError, find_file
from adamcb.lab.tasks.rare_events import RARE_METRICS
from adamcb.lab.tasks.tables import binary_loss, build_mlp, outputs_and_targets, split, standardized
from adamcb.lab.tasks.task import Task

TEST_SHARE = 0.2
SPLIT_SEED = 0


def protein(data_dir: str | None = None, *, validation: bool = False) -> Task:
    """Return the task: an MLP that tells which rows are homologous.

    With `validation=True` it never sees the test blocks: another fifth is held out, to choose settings on.
    """
    train, test = read_protein(find_file("protein", "protein.npz", data_dir), validation=validation)
    return Task(
        "protein-validation" if validation else "protein",
        partial(build_mlp, train.tensors[0].shape[1]),
        train,
        test,
        loss=binary_loss,
        predict=outputs_and_targets,
        metrics={**RARE_METRICS, "ROC AUC": metrics.roc_auc, "log loss": metrics.log_loss},
    )


def read_protein(path: Path, *, validation: bool = False) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test rows: features standardized by the training rows, and targets of 0.0 or 1.0.

    With `validation=True` the test blocks are left out, and as many others are returned in their place.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y, block = arrays["x"], arrays["y"], arrays["block"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataFileError(f"{path} must be an npz file with x, y and block: {error}.") from error
    if not (x.ndim == 2 and len(x) == len(y) == len(block) and np.isfinite(x).all() and np.isin(y, (0, 1)).all()):
        raise DataFileError(f"{path} must hold x [n, d], y [n] of 0 and 1, and block [n], got x of shape {x.shape}.")
    blocks = np.unique(block)
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(SPLIT_SEED)).numpy()
    count = max(1, round(TEST_SHARE * len(blocks)))
    held_out = blocks[order[:count]]
    if validation:
        kept = ~np.isin(block, held_out)
        x, y, block, held_out = x[kept], y[kept], block[kept], blocks[order[count : 2 * count]]
    in_test = np.isin(block, held_out)
    return split(standardized(x, in_test), torch.from_numpy(y.astype(np.float32)), in_test)
