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


def protein(data_dir: str | None = None) -> Task:
    """Return the task: an MLP that tells which rows are homologous."""
    train, test = read_protein(find_file("protein", "protein.npz", data_dir))
    return Task(
        "protein",
        partial(build_mlp, train.tensors[0].shape[1]),
        train,
        test,
        loss=binary_loss,
        predict=outputs_and_targets,
        metrics={**RARE_METRICS, "ROC AUC": metrics.roc_auc, "log loss": metrics.log_loss},
    )


def read_protein(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test rows: features standardized by the training rows, and targets of 0.0 or 1.0."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y, block = arrays["x"], arrays["y"], arrays["block"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataFileError(f"{path} must be an npz file with x, y and block: {error}.") from error
    if not (x.ndim == 2 and len(x) == len(y) == len(block) and np.isfinite(x).all() and np.isin(y, (0, 1)).all()):
        raise DataFileError(f"{path} must hold x [n, d], y [n] of 0 and 1, and block [n], got x of shape {x.shape}.")
    blocks = np.unique(block)
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(SPLIT_SEED)).numpy()
    in_test = np.isin(block, blocks[order[: max(1, round(TEST_SHARE * len(blocks)))]])
    return split(standardized(x, in_test), torch.from_numpy(y.astype(np.float32)), in_test)
