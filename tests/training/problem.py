"""The small real problem that the tests of training share: scikit-learn's digits, and networks for them."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamcb import AdamCB, CombinatorialBandit
from adamcb.lab.tasks.datasets import load_dataset


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_dataset("digits").train.tensors
    return images, labels


def digits(count: int | None = None, dtype: torch.dtype = torch.float32) -> TensorDataset:
    images, labels = _digits()
    return TensorDataset(images[:count].to(dtype), labels[:count])


def mlp(width: int = 8, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    return _seeded(layers, seed).to(dtype)


def cnn(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))

    return _seeded(layers, seed).to(dtype)


def _seeded(make, seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def eager(num_samples: int, batch_size: int, seed: int = 0) -> CombinatorialBandit:
    """Scale-free feedback that draws by its weights from the start, so that a few steps have unequal loss weights."""
    generator = torch.Generator().manual_seed(seed)
    return CombinatorialBandit(num_samples, batch_size, gate=None, generator=generator)


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def train(trainer: AdamCB, steps: int) -> list[float]:
    """Make this many steps, over as many epochs as it takes, and return the losses."""
    history: list[float] = []
    while len(history) < steps:
        for x, y in trainer:
            history.append(trainer.step(losses_of(trainer.model, x, y)).item())
            if len(history) == steps:
                break
    return history


def snapshot(trainer: AdamCB) -> list:
    """Return all numbers that training changes, as comparable values."""
    return [
        [tensor.tolist() for tensor in trainer.model.state_dict().values()],
        [plain(optimizer.state_dict()) for optimizer in trainer.optimizers],
        plain(trainer.selection.state_dict()),
    ]


def plain(state):
    if isinstance(state, Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, (list, tuple)) else state
