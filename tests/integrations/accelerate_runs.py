"""Trainings by a loop that is written with Accelerate, for one process or several."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor
from torch.utils.data import DataLoader

from adamcb.integrations.accelerate import AcceleratedBatches
from tests.integrations.problem import BATCH_SIZE, BATCHES, EPOCHS, LR, STOP, new_selection, outcome, train_set
from tests.training.problem import losses_of, mlp


def new_accelerator(
    split_batches: bool = False, dispatch_batches: bool = False, even_batches: bool = True, **options: Any
) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)  # of the test before
    GradientState._reset_state()
    loading = DataLoaderConfiguration(split_batches, dispatch_batches, even_batches)
    return Accelerator(cpu=True, dataloader_config=loading, **options)


class Run:
    """Model, optimizer, scheduler and batches, prepared."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        self.accelerator = new_accelerator(split_batches=True, **options)
        model = mlp(dtype=dtype, seed=seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10_000)  # steps, and changes nothing
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)
        self.batches = AcceleratedBatches(
            self.accelerator, self.model, train_set(dtype), BATCH_SIZE, selection=new_selection()
        )

    def train(self, folder: str | None = None, until: int = EPOCHS * BATCHES) -> dict[str, Any]:
        """Train until so many batches are taken, past those that fail; save after `STOP` if there is a folder."""
        while self.batches.meter.steps < until:
            for x, y in self.batches:
                with contextlib.suppress(torch.OutOfMemoryError):
                    self.train_on(x, y)
                if self.batches.meter.steps == STOP and folder is not None:
                    self.accelerator.save_state(folder)
                if self.batches.meter.steps == until:
                    break
        return outcome(self.accelerator.unwrap_model(self.model), self.batches.adamcb)

    def train_on(self, x: Tensor, y: Tensor) -> None:
        with self.accelerator.accumulate(self.model), self.accelerator.autocast():
            self.batches.backward(losses_of(self.model, x, y))
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()


def straight_and_resumed(folder: str, **options: Any) -> list[dict[str, Any]]:
    """Train through, saving in the middle of an epoch; train another model anew from there."""
    straight, later = Run(**options).train(folder), Run(seed=1, **options)
    later.accelerator.load_state(folder)
    return [straight, later.train()]


def in_two_processes(folder: str) -> list[Any]:
    """Return the results, and what is said of settings that several processes must not have."""
    results = straight_and_resumed(folder)
    accelerator = new_accelerator()
    optimizer = torch.optim.Adam(mlp().parameters())
    accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 10))
    refusals = [
        refusal_of(accelerator),
        refusal_of(unaware_accelerator()),
        refusal_of(new_accelerator(), sharded=True),
    ]
    return [refusals, *[refusal_of_prepared(*setting) for setting in SETTINGS], *results]


def unaware_accelerator() -> Accelerator:
    """Return an Accelerator that looks for no process group on the CPU."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator()


# split_batches, dispatch_batches, even_batches, and what is said.
SETTINGS = [
    (False, False, True, "gives each batch to one process alone.*`even_batches=True` repeats samples"),
    (False, False, False, "gives each batch to one process alone"),
    (True, False, False, "`split_batches=True` cuts each process's part once more"),
    (True, True, False, "`dispatch_batches=True` sends every process rows of what the first one drew"),
]


def refusal_of_prepared(split: bool, dispatch: bool, even: bool, message: str) -> str:
    """Let Accelerate shard a loader of chosen batches, and return what is said to it."""
    accelerator = new_accelerator(split, dispatch, even)
    batches = AcceleratedBatches(accelerator, mlp(dtype=torch.float64), train_set(), BATCH_SIZE)
    draws: Any = batches.adamcb.loader.batch_sampler
    accelerator.prepare(DataLoader(train_set(), batch_sampler=draws))
    try:
        iter(batches)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def refusal_of(accelerator: Accelerator, **options: Any) -> str:
    try:
        AcceleratedBatches(accelerator, mlp(dtype=torch.float64), train_set(), BATCH_SIZE, **options)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


os.environ["HF_HUB_OFFLINE"] = "1"
