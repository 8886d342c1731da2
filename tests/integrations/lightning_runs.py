"""Trainings by Lightning, for one process or several."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from adamcb.integrations.lightning import AdamCBCallback, weigh
from tests.integrations.problem import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    LR,
    STOP,
    by_epochs,
    new_selection,
    outcome,
    train_set,
)
from tests.training.problem import mlp

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Module(L.LightningModule):
    """An ordinary module, with what AdamCB asks of it."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = mlp(dtype=torch.float64) if net is None else net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = weigh(self, F.cross_entropy(self(x), y, reduction="none"))
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=LR)


class TwoParts(Module):
    """Has no child that is the model, so the whole module is measured."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.body, self.head = mlp(dtype=torch.float64)[:3], mlp(dtype=torch.float64)[3]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class CutShort(Module):
    """Ends its first epoch at the fourth batch, in the middle of a step."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.current_epoch == 0 and batch_idx == 3 else None


class Manual(Module):
    """Steps by itself, at the end of an epoch after fewer batches, and goes on if a backward pass fails."""

    def __init__(self, accumulate: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.steps = by_epochs(BATCHES, accumulate)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer: Any = self.optimizers()
        step = next(step for step in self.steps if batch_idx in step)
        try:
            self.manual_backward(weigh(self, F.cross_entropy(self(x), y, reduction="none")) / len(step))
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            return
        if batch_idx == step[-1]:
            optimizer.step()
            optimizer.zero_grad()


class SaveAfter(L.Callback):
    """Saves after so many batches, wherever in a step that is."""

    def __init__(self, batches: int, path: Path) -> None:
        self.batches, self.path = batches, path

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.batches -= 1
        if self.batches == 0:
            trainer.save_checkpoint(self.path)


def new_trainer(*callbacks: Any, **options: Any) -> L.Trainer:
    settings = {"max_epochs": EPOCHS, "accelerator": "cpu", "use_distributed_sampler": False, **options}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(callbacks=list(callbacks), **quiet, **settings)


def quietly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call without Lightning's own warnings, of tiny problems and of newer torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


def fit(
    module: Module,
    *callbacks: Any,
    dtype: torch.dtype = torch.float64,
    ckpt_path: Any = None,
    loader: Any = None,
    choosing: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train, and return what came of it."""
    choosing = {"selection": new_selection(), "scores": "exact", **(choosing or {})}
    chosen = AdamCBCallback(train_set(dtype), BATCH_SIZE, **choosing)
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = quietly(new_trainer, chosen, *callbacks, enable_checkpointing=saves, **options)
    quietly(trainer.fit, module, chosen.loader if loader is None else loader, ckpt_path=ckpt_path)
    return outcome(module, chosen.adaptive)


def straight_and_resumed(folder: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Train through, saving in the middle of an epoch; train anew from there; train a module of two parts."""
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=STOP, save_top_k=-1)
    straight = fit(Module(), saving, **options)
    resumed = fit(Module(mlp(dtype=torch.float64, seed=1)), ckpt_path=Path(folder) / f"step={STOP}.ckpt", **options)
    return [straight, resumed, fit(TwoParts(), **options)]


def in_two_processes(folder: str) -> list[Any]:
    """Return what is said of settings that several processes must not have, and the results without them."""
    options = {"strategy": "ddp", "devices": 2}
    refusals = [
        refusal_of(use_distributed_sampler=True, **options),
        refusal_of(choosing={"sharded": True, "selection": None}, **options),
    ]
    return [refusals, *straight_and_resumed(folder, options)]


def refusal_of(**options: Any) -> str:
    try:
        fit(Module(), **options)
    except ValueError as error:
        return str(error)
    return "nothing was refused"
