"""Where several ranks are one process to the last digits, where they are not, and by how much."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

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


NORMS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "by rank": lambda: nn.BatchNorm1d(16),
    "synchronized": lambda: SynchronizedNorm(16),
    "bfloat16": nn.Identity,
}


def train(kind: str) -> dict:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), NORMS[kind](), nn.ReLU(), nn.Linear(16, 10)).double()
    model = in_ranks(model.float() if kind == "bfloat16" else model)
    dtype = torch.float32 if kind == "bfloat16" else torch.float64
    trainer = AdamCB(model, digits(SAMPLES, dtype), BATCH_SIZE, lr=0.01)
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


# The largest difference of a parameter after 20 steps of 0.01; the page docs/scale.md names these.
DIFFERENCES = {"none": (0.0, 1e-12), "by rank": (1e-2, 0.3), "synchronized": (0.0, 1e-9), "bfloat16": (1e-6, 0.05)}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in DIFFERENCES])
def test_the_ranks_agree_in_every_case_and_differ_from_one_process_by_so_much(kind):
    alone = train(kind)
    first, second = launch(2, train, kind)
    assert first["draws"] == second["draws"]
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["parameters"], second["parameters"])
    difference = np.abs(first["parameters"] - alone["parameters"]).max()
    print(f"{kind}: parameters differ by {difference:.2g}, draws equal: {first['draws'] == alone['draws']}")
    low, high = DIFFERENCES[kind]
    assert low <= difference <= high
    if kind in ("none", "synchronized"):
        assert first["draws"] == alone["draws"]
