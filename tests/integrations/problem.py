"""The problem that all frameworks solve, and `AdamCB`'s own loop on it, which they must agree with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from adamcb import AdaptiveLoader, CombinatorialBandit
from adamcb.selection import ProofFeedback
from tests.distributed.launch import PROCESSES, launch
from tests.training.problem import digits, losses_of, mlp

SAMPLES, BATCH_SIZE, EPOCHS, LR = 200, 16, 2, 0.01
BATCHES = 12  # an epoch
STOP = 17  # in the middle of the second epoch
TOLERANCE = 1e-6


def train_set(dtype: torch.dtype = torch.float64) -> Any:
    return digits(SAMPLES, dtype)


def new_selection(num_samples: int = SAMPLES, batch_size: int = BATCH_SIZE) -> CombinatorialBandit:
    """Return a selection that notices how large norms are: scale-free feedback would not tell a factor."""
    generator = torch.Generator().manual_seed(0)
    return CombinatorialBandit(num_samples, batch_size, feedback=ProofFeedback(50.0), gate=None, generator=generator)


def weights_of(loader: AdaptiveLoader) -> np.ndarray:
    """Return the weights of the selection, none if it has none."""
    return getattr(loader.selection, "weights", np.empty(0))


def outcome(model: nn.Module, loader: AdaptiveLoader) -> dict[str, Any]:
    """Return what two runs must agree on."""
    loader.learn()
    parameters = torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])
    return {"parameters": parameters.numpy(), "weights": weights_of(loader), "steps": loader.meter.steps}


def own_loop(
    accumulate: int = 1,
    dtype: torch.dtype = torch.float64,
    autocast: torch.dtype | None = None,
    steps: list[list[int]] | None = None,
    taken: int | None = None,
    divisor: int | None = None,
) -> dict[str, Any]:
    """Train by an ordinary loop over an `AdaptiveLoader`, in this process; with a GradScaler if `autocast` needs one.

    Each of the `steps` lists its batches, numbered from 0 through all epochs; others are taken and not trained on. The
    default are steps of `accumulate` batches, and the last one of an epoch of what is left. It ends when so many
    batches are `taken`, or after two epochs. Losses are divided by `divisor`, or by the number of batches of the step.
    """
    model = mlp(dtype=dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    scaler = new_scaler() if autocast is torch.float16 else None
    with AdaptiveLoader(model, train_set(dtype), BATCH_SIZE, selection=new_selection(), scores="exact") as loader:
        steps = by_epochs(BATCHES, accumulate) if steps is None else steps
        for (x, y), step in in_steps(loader, steps, taken):
            with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
                losses = losses_of(model, x, y)
            loss = loader.weigh(losses) / (divisor or len(step))
            (loss if scaler is None else scaler.scale(loss)).backward()
            if step[-1] == loader.meter.steps - 1:
                optimizer.step() if scaler is None else scaler.step(optimizer)
                if scaler is not None:
                    scaler.update()
                optimizer.zero_grad()
        return outcome(model, loader)


def in_steps(
    loader: AdaptiveLoader, steps: list[list[int]], taken: int | None = None
) -> Iterator[tuple[Any, list[int]]]:
    """Yield the batches of two epochs, or of the first ones `taken`, that are in a step, with it."""
    step_of = {number: step for step in steps for number in step}
    for _ in range(EPOCHS):
        for batch in loader:
            if step := step_of.get(loader.meter.steps - 1):
                yield batch, step
            if loader.meter.steps == taken:
                return


def by_epochs(batches: int, accumulate: int) -> list[list[int]]:
    """Return the steps of two epochs of so many batches, the last of each with what is left."""
    return [step for i in range(EPOCHS) for step in chunks(range(i * batches, (i + 1) * batches), accumulate)]


def chunks(batches: Iterable[int], size: int) -> list[list[int]]:
    """Return so many at a time, and the rest."""
    left = list(batches)
    return [left[i : i + size] for i in range(0, len(left), size)]


class Breaks(torch.autograd.Function):
    """Passes on what it is given, and does not get through the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise torch.OutOfMemoryError("as if there were no memory left")


def break_backward(layer: nn.Module, calls: Iterable[int]) -> None:
    """Let the backward passes of these calls of a layer fail, when it has its own gradients and those before do not."""
    numbers, broken = itertools.count(), set(calls)
    layer.register_forward_pre_hook(lambda _, inputs: Breaks.apply(*inputs) if next(numbers) in broken else None)


def new_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10)


def assert_same(actual: Any, expected: dict[str, Any]) -> None:
    if isinstance(actual, Exception):
        raise actual
    assert actual["steps"] == expected["steps"]
    np.testing.assert_allclose(actual["parameters"], expected["parameters"], rtol=0.0, atol=TOLERANCE)
    np.testing.assert_allclose(actual["weights"], expected["weights"], rtol=TOLERANCE)


def in_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call the function in real processes, which find themselves as those that torchrun starts do."""
    PROCESSES.set_forkserver_preload([function.__module__])  # imports take longer than training
    results = launch(world_size, _as_by_torchrun, function, args)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _as_by_torchrun(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "TORCHELASTIC_RUN_ID": "test"}
    return function(*args)
