"""What tasks on tables of numbers share: models, losses, and what they predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def build_mlp(num_features: int, num_outputs: int = 1, width: int = 256) -> nn.Module:
    """Return an MLP with two hidden layers; one output is float[k], several are float[k, outputs]."""
    layers = [nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    last: list[nn.Module] = [nn.Linear(width, num_outputs)]
    return nn.Sequential(*layers, *last, *([nn.Flatten(0)] if num_outputs == 1 else []))


def binary_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the binary cross-entropy of every row."""
    features, targets = batch
    return F.binary_cross_entropy_with_logits(model(features), targets, reduction="none")


def outputs_and_targets(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return what the model says of every row, and the targets."""
    features, targets = batch
    return model(features), targets


def standardized(x: np.ndarray, in_test: np.ndarray) -> Tensor:
    """Return float32 [n, d]: every column with mean 0 and variance 1 over the rows that are not in the test set."""
    mean, std = x[~in_test].mean(axis=0, dtype=np.float64), x[~in_test].std(axis=0, dtype=np.float64)
    return torch.from_numpy(((x - mean) / np.where(std > 0.0, std, 1.0)).astype(np.float32))


def split(features: Tensor, targets: Tensor, in_test: np.ndarray) -> tuple[TensorDataset, TensorDataset]:
    """Return the training rows and the test rows."""
    where = torch.from_numpy(in_test)
    return TensorDataset(features[~where], targets[~where]), TensorDataset(features[where], targets[where])
