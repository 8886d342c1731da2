"""Rare events from scikit-learn's generator: one row in a hundred is positive, in eight clusters. It needs no file.

This is what choosing batches is for: few rows carry the gradient, and a uniform batch of 512 has five of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from sklearn.datasets import make_classification

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.tables import build_mlp, split, standardized
from adamcb.lab.tasks.task import Task

NUM_TRAIN, NUM_TEST, NUM_FEATURES = 40_000, 10_000, 20
# The log loss is the loss itself.
RARE_METRICS = {"average precision": metrics.average_precision, "calibration error": metrics.calibration_error}


def rare_events(data_dir: str | None = None, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST) -> Task:
    """Return the task: an MLP that tells rare rows from common ones."""
    x, y = make_classification(
        num_train + num_test,
        NUM_FEATURES,
        n_informative=10,
        n_redundant=0,
        n_clusters_per_class=8,
        weights=[0.99],
        class_sep=2.0,
        flip_y=0.0,
        random_state=0,
    )
    in_test = np.arange(len(x)) >= num_train
    train, test = split(standardized(np.asarray(x), in_test), torch.from_numpy(np.asarray(y)), in_test)
    return Task(
        "rare-events",
        partial(build_mlp, NUM_FEATURES, num_outputs=2, width=512),
        train,
        test,
        metrics=RARE_METRICS,
        batch_size=512,
        epochs=10,
    )
