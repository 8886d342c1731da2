"""A regression with heavy-tailed targets, made by scikit-learn: a few rows are worth most of the squared error."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.tables import build_mlp, outputs_and_targets, split, standardized
from adamcb.lab.tasks.task import Task

NUM_TRAIN, NUM_TEST, NUM_FEATURES = 40_000, 10_000, 10


def heavy_tails(data_dir: str | None = None, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST) -> Task:
    """Return the task: an MLP with the squared error, on targets exp(f/3) of Friedman's first function f."""
    x, f = make_friedman1(num_train + num_test, NUM_FEATURES, noise=0.5, random_state=0)
    in_test = np.arange(len(x)) >= num_train
    y = np.exp(f / 3.0)
    scaled = torch.from_numpy((y / y[~in_test].std()).astype(np.float32))
    train, test = split(standardized(x, in_test), scaled, in_test)
    return Task(
        "heavy-tails",
        partial(build_mlp, NUM_FEATURES, width=512),
        train,
        test,
        loss=squared_error,
        predict=outputs_and_targets,
        metrics={"RMSE": metrics.rmse},
        batch_size=512,
        epochs=10,
    )


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    """Return the squared error of every row."""
    features, targets = batch
    return (model(features) - targets).square()
