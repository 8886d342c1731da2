"""Trainings by a loop that is written with Accelerate, for one process or several."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor

from adamcb import AdaptiveLoader
from adamcb.integrations.accelerate import check_accelerator
from tests.integrations.problem import BATCH_SIZE, BATCHES, EPOCHS, LR, STOP, new_selection, outcome, train_set
from tests.training.problem import losses_of, mlp


def new_accelerator(split_batches: bool = False, **options: Any) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)  # of the test before
    GradientState._reset_state()
    loading = DataLoaderConfiguration(split_batches)
    return Accelerator(cpu=True, dataloader_config=loading, **options)


class Run:
    """Model, optimizer, scheduler and loader: the loop of anybody who uses Accelerate, with two lines changed."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        self.accelerator = new_accelerator(split_batches=True, **options)
        model = mlp(dtype=dtype, seed=seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10_000)  # steps, and changes nothing
        loader = AdaptiveLoader(model, train_set(dtype), BATCH_SIZE, selection=new_selection(), scores="exact")
        prepared = self.accelerator.prepare(model, optimizer, scheduler, loader)
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        check_accelerator(self.accelerator)
        self.accelerator.register_for_checkpointing(self.loader)

    def train(self, folder: str | None = None, until: int = EPOCHS * BATCHES) -> dict[str, Any]:
        """Train until so many batches are taken, past those that fail; save after `STOP` if there is a folder."""
        while self.loader.meter.steps < until:
            for x, y in self.loader:
                with contextlib.suppress(torch.OutOfMemoryError):
                    self.train_on(x, y)
                if self.loader.meter.steps == STOP and folder is not None:
                    self.accelerator.save_state(folder)
                if self.loader.meter.steps == until:
                    break
        return outcome(self.accelerator.unwrap_model(self.model), self.loader)

    def train_on(self, x: Tensor, y: Tensor) -> None:
        with self.accelerator.accumulate(self.model), self.accelerator.autocast():
            self.accelerator.backward(self.loader.weigh(losses_of(self.model, x, y)))
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
    return [[refusal_of(accelerator), refusal_of(unaware_accelerator())], *results]


def unaware_accelerator() -> Accelerator:
    """Return an Accelerator that looks for no process group on the CPU."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator()


def refusal_of(accelerator: Accelerator) -> str:
    try:
        check_accelerator(accelerator)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


os.environ["HF_HUB_OFFLINE"] = "1"
