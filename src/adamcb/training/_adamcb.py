"""`AdamCB`: selection, loader, norms and optimizer joined into the body of a training loop."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb import _checks
from adamcb.data import BanditLoader, SelectedBatch
from adamcb.gradnorm import PerSampleNorms
from adamcb.optim import AdamX
from adamcb.selection import CombinatorialBandit, Draw, Selection, UniformSelection
from adamcb.training import _checkpoint
from adamcb.training._late import LateFeedback, refuse_nonfinite
from adamcb.training._meter import Meter, TimedSelection


class AdamCB:
    """Trains a model on batches that are chosen for what they teach.

    Every step: the selection draws K samples, the loader fetches them, your code computes one loss per sample, the
    losses are weighted so that their sum is an unbiased estimate of the mean loss over the dataset, one backward pass
    gives the gradient and the K per-sample gradient norms, the optimizer steps, and the norms teach the selection.

        trainer = AdamCB(model, train_set, batch_size=128)
        for epoch in range(trainer.epoch, 10):
            for x, y in trainer:
                trainer.step(F.cross_entropy(model(x), y, reduction="none"))

    `step` is `weigh`, `backward` and `update`. Where you need to come in between, call them yourself:

        loss = trainer.weigh(losses)              # or weigh(losses, accumulate=2), over two batches
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(...)
        trainer.update(scaler)

    The paper's AdamCB, to the letter of its proof, is `selection=CombinatorialBandit(n, K)` with
    `optimizer=AdamX(model.parameters(), lr)`. The default is the combination that learned fastest in our measurements:
    scale-free feedback, and AdamX with bias correction.

    Args:
        model: The model; `trainer` watches its forward passes until it is closed.
        dataset: A map-style dataset of n samples.
        batch_size: K.
        lr: Learning rate of the default optimizer.
        selection: Chooses batches. None: `CombinatorialBandit(n, K, feedback="scale-free")`, seeded by `seed`.
        optimizer: One optimizer or several, all of which step. None: `AdamX(lr=lr, bias_correction=True)`.
        norms: "exact", "last-layer" (see `PerSampleNorms`), or None: measure nothing and learn nothing. A
            `UniformSelection` learns nothing, so for it nothing is measured.
        num_workers: How many processes load data.
        device: Where batches are moved. None: where the model's parameters are.
        seed: Seeds the default selection, and random transforms in the workers. Never a global generator.
        feedback_delay: After how many further steps norms are applied. None: 0 on the CPU; 1 on an accelerator, which
            then never waits. What is checked (NaN, `max_norm`) is checked as late, and parameters have moved by then.
        loader_options: What else `BanditLoader` takes.

    Attributes:
        epoch: How many epochs are complete.
        meter: Whether it pays, and where the time goes: `meter.as_dict()`, `str(meter)`.
        selection, loader, optimizers: The parts.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        batch_size: int,
        lr: float | Tensor = 1e-3,
        *,
        selection: Selection | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        norms: str | None = "exact",
        num_workers: int = 0,
        device: torch.device | str | None = None,
        seed: int = 0,
        feedback_delay: int | None = None,
        **loader_options: Any,
    ) -> None:
        _checks.integer("batch_size", batch_size, low=1)
        self.model = model
        self.device = _device_of(model) if device is None else torch.device(device)
        if selection is None:
            generator = torch.Generator().manual_seed(_checks.integer("seed", seed, low=0))
            selection = CombinatorialBandit(len(dataset), batch_size, feedback="scale-free", generator=generator)
        elif getattr(selection, "batch_size", batch_size) != batch_size:
            raise ValueError(
                f"`batch_size` must be the selection's, got batch_size={batch_size} and {selection.batch_size}."
            )
        self.selection: Selection = selection
        self.meter = Meter(len(dataset), batch_size)
        timed = TimedSelection(selection, self.meter)
        self.loader = BanditLoader(dataset, timed, num_workers=num_workers, seed=seed, **loader_options)
        self.optimizers = _optimizers(optimizer, model, lr)
        if feedback_delay is None:
            feedback_delay = 0 if self.device.type == "cpu" else 1
        self._late = LateFeedback(_checks.integer("feedback_delay", feedback_delay, low=0), self._learn)
        learns = norms is not None and not isinstance(selection, UniformSelection)
        self._norms = PerSampleNorms(model, mode=norms) if learns and norms is not None else None
        self._timed = timed
        self.epoch = 0
        self._draw: Draw | None = None  # of the batch that was handed out and not weighed yet
        self._weighed: list[_Weighed] = []  # batches since the last update
        self._taken: float | None = None  # when the last batch was handed out

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer, or the first of several."""
        return self.optimizers[0]

    def __len__(self) -> int:
        """How many batches an epoch has: floor(n/K)."""
        return len(self.loader)

    def __iter__(self) -> Iterator[SelectedBatch]:
        """Yield one epoch of chosen batches, or what is left of it after a checkpoint was loaded."""
        batches = iter(self.loader)
        self.meter.start_epoch()
        while True:
            self._note_training()
            start, selecting = time.perf_counter(), self.meter.seconds["selection"]
            try:
                batch = next(batches)
            except StopIteration:
                self.epoch += 1
                return
            self._draw = batch.draw
            self.meter.note_draw(batch.draw)
            batch = batch if self.device.type == "cpu" else batch.to(self.device, non_blocking=True)
            self._taken = time.perf_counter()
            drawing = self.meter.seconds["selection"] - selecting
            self.meter.seconds["data"] += self._taken - start - drawing
            yield batch

    def step(self, losses: Tensor) -> Tensor:
        """Weigh the losses of the current batch, go backward, step and learn.

        Args:
            losses: float[K], one loss per sample, in the order of the batch.

        Returns:
            The weighted loss, detached: an unbiased estimate of the mean loss over the dataset.

        Raises:
            ValueError: If `losses` is not one loss per sample.
            RuntimeError: If no batch is waiting, or it was weighed already.
            FloatingPointError: If a loss or a gradient norm is not finite. Parameters, optimizer and weights are as
                before, unless `feedback_delay` is above 0.
        """
        loss = self.weigh(losses)
        loss.backward()
        self.update()
        return loss.detach()

    def weigh(self, losses: Tensor, *, accumulate: int = 1) -> Tensor:
        """Return Σ loss_weights·losses of the current batch, for you to go backward on.

        Args:
            losses: float[K], one loss per sample, in the order of the batch.
            accumulate: Over how many batches you add gradients up before `update`: the weights are divided by it, and
                the sum is the mean of that many unbiased estimates.

        Returns:
            A scalar: an unbiased estimate of the mean loss over the dataset, divided by `accumulate`.
        """
        if self._draw is None:
            raise RuntimeError(
                "`weigh` and `step` must be called once for each batch, and no batch is waiting. "
                "Take one from the trainer: `for x, y in trainer`."
            )
        _check_losses(losses, len(self._draw))
        factors = self._draw.loss_weights / _checks.integer("accumulate", accumulate, low=1)
        dtype = losses.dtype if losses.dtype == torch.float64 else torch.float32
        loss = (torch.from_numpy(factors).to(losses.device, dtype, non_blocking=True) * losses).sum()
        immediate = losses.device.type == "cpu"
        if immediate and not math.isfinite(loss.item()):
            draw, self._draw = self._draw, None
            refuse_nonfinite("loss", losses, draw)
        unchecked = None if immediate else losses.detach()
        self._weighed.append(_Weighed(self._draw, factors, unchecked))
        self._draw = None
        return loss

    def update(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Step the optimizers on the gradients that are there, set them to None, and learn from the norms.

        Args:
            scaler: The GradScaler that scaled the loss: it makes the step (or skips it, when gradients overflowed; the
                batch is then not learned from) and is updated.
        """
        if not self._weighed:
            raise RuntimeError("`update` must follow `weigh` and `backward`, and nothing was weighed since the last.")
        self._note_training()
        weighed, self._weighed = self._weighed, []
        try:
            self._feed_back(weighed, scaler)
        except BaseException:
            self._clear_gradients()
            raise
        start = time.perf_counter()
        for optimizer in self.optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        self._clear_gradients()
        self.meter.seconds["step"] += time.perf_counter() - start

    def _feed_back(self, weighed: list[_Weighed], scaler: torch.amp.GradScaler | None) -> None:
        """Send the norms of these batches on their way, and apply those that are due."""
        if self._norms is None:
            return
        scale = 1.0 if scaler is None else scaler.get_scale()
        start = time.perf_counter()
        norms = self._norms.take(scale * np.concatenate([batch.factors for batch in weighed]))
        self.meter.seconds["forward_backward"] += time.perf_counter() - start
        for batch, part in zip(weighed, norms.split(self.selection.batch_size), strict=True):
            if scaler is None or bool(torch.isfinite(part).all()):
                self._late.add(batch.draw, part, batch.losses)
        self._late.deliver()

    def _learn(self, draw: Draw, norms: np.ndarray) -> None:
        self._timed.update(draw, norms)
        self.meter.note_norms(draw, norms)

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _note_training(self) -> None:
        if self._taken is not None:
            self.meter.seconds["forward_backward"] += time.perf_counter() - self._taken
            self._taken = None

    def close(self) -> None:
        """Take the trainer off the model, which is then as it was. May be called twice."""
        if self._norms is not None:
            self._norms.close()

    def __enter__(self) -> AdamCB:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit: model, optimizers, selection, position, generators.

        Raises:
            RuntimeError: If a batch was taken and not trained on yet: save between steps.
        """
        if self._draw is not None or self._weighed:
            raise RuntimeError("A state must be saved between steps, and a batch is waiting for `step` or `update`.")
        return self._collect()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. The next `for` over the trainer goes on in the middle of the epoch.

        torch's global generators (the CPU's, and the device's) are set as they were, since dropout draws from them.

        Raises:
            ValueError: If the state does not fit. Nothing is changed then.
        """
        keys = ("model", "optimizers", "selection", "loader", "late", "epoch", "generators")
        if not isinstance(state, dict) or not set(keys) <= set(state):
            raise ValueError(f"`state` must be a dict with the keys {', '.join(keys)}.")
        if len(state["optimizers"]) != len(self.optimizers):
            got = len(state["optimizers"])
            raise ValueError(f"`state` must be of {len(self.optimizers)} optimizers, got one of {got}.")
        before = copy.deepcopy(self._collect())
        try:
            self._restore(state)
        except Exception as error:
            self._restore(before)
            raise ValueError(f"`state` must fit this trainer: {error}") from error
        self._draw, self._taken = None, None
        self._weighed.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint. A crash while writing leaves the older file whole."""
        _checkpoint.write(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint; see `load_state_dict`. No code from the file is run.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If the file is damaged, foreign, or does not fit. Nothing is changed then.
        """
        state = _checkpoint.read(path)
        try:
            self.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"The checkpoint {path} does not fit this trainer: {error}") from error

    def _collect(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "selection": self.selection.state_dict(),
            "loader": self.loader.state_dict(),
            "late": self._late.state_dict(),
            "epoch": self.epoch,
            "generators": _generator_states(self.device),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.selection.load_state_dict(state["selection"])
        self.loader.load_state_dict(state["loader"])
        self._late.load_state_dict(state["late"])
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.epoch = _checks.integer("state['epoch']", state["epoch"], low=0)
        _set_generator_states(self.device, state["generators"])


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A batch between `weigh` and `update`."""

    draw: Draw
    factors: np.ndarray  # float64[K], what its losses were multiplied by
    losses: Tensor | None  # where they could not be checked without waiting for the device


def _check_losses(losses: Any, size: int) -> None:
    if not isinstance(losses, Tensor):
        raise TypeError(f"`losses` must be a tensor, got losses of type {type(losses).__name__}.")
    if losses.dim() == 0:
        raise ValueError(
            'losses must be one per sample, got a single number. Compute them with reduction="none": '
            'F.cross_entropy(model(x), y, reduction="none").'
        )
    if losses.shape != (size,):
        raise ValueError(
            f"`losses` must have shape ({size},), one loss per sample, got losses of shape {tuple(losses.shape)}."
        )
    if not losses.requires_grad:
        raise ValueError("`losses` must depend on the model's parameters, got losses without a gradient.")


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _optimizers(
    optimizer: Optimizer | Sequence[Optimizer] | None, model: nn.Module, lr: float | Tensor
) -> tuple[Optimizer, ...]:
    if optimizer is None:
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return (AdamX(trainable, lr=lr, bias_correction=True),)
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not optimizers or not all(isinstance(one, Optimizer) for one in optimizers):
        kinds = ", ".join(type(one).__name__ for one in optimizers) or "none"
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or several, got {kinds}.")
    return optimizers


def _generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_generator_states(device: torch.device, states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)
