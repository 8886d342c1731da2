"""Where several ranks are one process to the last digits, where they are not, and by how much."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from adamcb import AdamCB
from adamcb.data import whole_of
from tests.distributed.launch import launch
from tests.distributed.problem import in_ranks
from tests.training.problem import digits, losses_of

SAMPLES, BATCH_SIZE, STEPS = 192, 24, 20


class SumOfRanks(torch.autograd.Function):
    """The sum over all ranks, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        dist.all_reduce(total := own.clone())
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        dist.all_reduce(total := gradient.clone())
        return total


class SynchronizedNorm(nn.BatchNorm1d):
    """What SyncBatchNorm computes, which torch has for accelerators only: mean and variance of all ranks' samples."""

    def forward(self, input: Tensor) -> Tensor:
        sums = torch.stack([torch.full_like(input[0], len(input)), input.sum(0), (input * input).sum(0)])
        count, total, squares = SumOfRanks.apply(sums) if dist.is_initialized() else sums  # pyright: ignore
        mean = total / count
        variance = squares / count - mean * mean
        return (input - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


class Shaken(Dataset):
    """Digits with noise of its own in every sample, as a random transform adds it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.digits = digits(SAMPLES, dtype)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.digits[index]
        return x + 0.1 * torch.randn_like(x), y


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "by rank": lambda: nn.BatchNorm1d(16),
    "synchronized": lambda: SynchronizedNorm(16),
    "dropout": lambda: nn.Dropout(0.1),
}


def train(kind: str) -> dict:
    torch.manual_seed(0)
    dtype = torch.float32 if kind in ("float32", "bfloat16") else torch.float64
    layer = LAYERS.get(kind, nn.Identity)()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), layer, nn.ReLU(), nn.Linear(16, 10)).double().to(dtype)
    model, data, options = in_ranks(model), digits(SAMPLES, dtype), {}
    if kind == "transforms":
        data, options = Shaken(dtype), {"num_workers": 1, "multiprocessing_context": "fork"}
    trainer = AdamCB(model, data, BATCH_SIZE, lr=0.01, **options)
    casting = torch.autocast("cpu", dtype=torch.bfloat16) if kind == "bfloat16" else nullcontext()
    draws = []
    while len(draws) < STEPS:
        for batch in trainer:
            draws.append(whole_of(batch.draw).indices.tolist())
            with casting:
                losses = losses_of(model, *batch)
            trainer.step(losses)
            if len(draws) == STEPS:
                break
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"draws": draws, "parameters": flat.numpy(), "weights": trainer.selection.weights}  # pyright: ignore


# Whether the draws are those of one process, and the range of the largest difference of a parameter after 20 steps of
# 0.01. These are the rows of the table in docs/scale.md.
EXPECTED = {
    "float64": (True, 0.0, 1e-12),
    "float32": (True, 0.0, 1e-4),
    "synchronized": (True, 0.0, 1e-9),
    "by rank": (False, 1e-2, 0.3),
    "bfloat16": (False, 1e-6, 0.05),
    "dropout": (False, 1e-3, 0.3),
    "transforms": (False, 1e-3, 0.3),
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in EXPECTED])
def test_the_ranks_agree_in_every_case_and_differ_from_one_process_by_so_much(kind):
    alone = train(kind)
    first, second = launch(2, train, kind)
    assert first["draws"] == second["draws"]
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["parameters"], second["parameters"])
    difference = np.abs(first["parameters"] - alone["parameters"]).max()
    print(f"{kind}: parameters differ by {difference:.2g}, draws equal: {first['draws'] == alone['draws']}")
    are_the_same, low, high = EXPECTED[kind]
    assert (first["draws"] == alone["draws"]) == are_the_same
    assert low <= difference <= high
