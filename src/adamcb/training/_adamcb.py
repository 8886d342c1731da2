"""`AdamCB`: selection, loader, norms and optimizer joined into the body of a training loop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb import _checks
from adamcb.data import BanditLoader, SelectedBatch, whole_of
from adamcb.gradnorm import PerSampleNorms
from adamcb.selection import Draw, Selection
from adamcb.training import _checkpoint, _shards, _state
from adamcb.training._arguments import (
    check_losses,
    device_of,
    learns,
    optimizers_or_default,
    seed_of,
    selection_or_default,
    shard_or_default,
)
from adamcb.training._late import LateFeedback, refuse_nonfinite
from adamcb.training._meter import Meter, TimedSelection
from adamcb.training._ranks import (
    Ranks,
    check_same_gradients,
    gather,
    is_sharded_model,
    refuse_other_parallelism,
    unwrapped,
)
from adamcb.training._weighed import Weighed, scale_of, unchecked_losses, unweighted


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
    `optimizer=AdamX(model.parameters(), lr)`. The default is scale-free feedback, whose weights move within an epoch,
    behind a gate (epochs begin reshuffled, and end with chosen batches as far as that pays), and AdamX with bias
    correction. It is not the best everywhere: `adamcb compare` tells for your model and data.

    **Several processes.** Under an initialized process group of W ranks, the same code on every rank trains one model:

        dist.init_process_group()
        model = DistributedDataParallel(model)
        trainer = AdamCB(model, train_set, batch_size=128)      # 128 for all ranks together

    Every rank makes the same draw of K samples and trains on its own K/W of them. `weigh` multiplies by W, because
    DistributedDataParallel (and `fully_shard`) averages gradients over the ranks: the average is the same unbiased
    estimate as in one process. `update` gathers indices and norms in one call, so that all ranks hold the same weights,
    meter and errors. `update` and `step` must be called on every rank. See docs/scale.md.

    Args:
        model: The model; `trainer` watches its forward passes until it is closed. Wrapped in DistributedDataParallel or
            not makes no difference here, as long as what averages the gradients is what you call.
        dataset: A map-style dataset of n samples, whole on every rank.
        batch_size: K, of all ranks together: a multiple of their number.
        lr: Learning rate of the default optimizer.
        selection: Chooses batches. None: `CombinatorialBandit(n, K, feedback="scale-free")`, seeded by `seed`.
        optimizer: One optimizer or several, all of which step. None: `AdamX(lr=lr, bias_correction=True)`. "external":
            a framework's loop steps, zeroes gradients and saves the model. `update` then learns, no more, and states
            hold what choosing batches needs, no more.
        norms: "exact", "last-layer" (see `PerSampleNorms`), or None: measure nothing and learn nothing. A
            `UniformSelection` learns nothing, so for it nothing is measured.
        num_workers: How many processes load data.
        device: Where batches are moved. None: where the model's parameters are.
        seed: Seeds the default selection, and random transforms in the workers. Never a global generator.
        feedback_delay: After how many further steps norms are applied. None: 0 on the CPU; 1 on an accelerator, which
            then never waits. What is checked (NaN, `max_norm`) is checked as late, and parameters have moved by then.
        sharded: With several ranks: each holds the weights of its own n/W samples (i mod W = rank) and draws K/W of
            them, a stratified design. It is as unbiased, and no feedback is sent. `selection`, if given, is then the
            one for this rank's samples; readings of the meter are those of this rank; `save` and `load` are called on
            every rank, and continue on the same number of ranks.
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
        optimizer: Optimizer | Sequence[Optimizer] | str | None = None,
        norms: str | None = "exact",
        num_workers: int = 0,
        device: torch.device | str | None = None,
        seed: int = 0,
        feedback_delay: int | None = None,
        sharded: bool = False,
        **loader_options: Any,
    ) -> None:
        refuse_other_parallelism(model)
        self.model = model
        self.device = device_of(model) if device is None else torch.device(device)
        self._ranks, self._sharded = Ranks.current(), sharded
        self._ranks.check_batch_size(_checks.integer("batch_size", batch_size, low=1))
        if sharded:
            self.selection = shard_or_default(selection, dataset, batch_size, seed, self._ranks)
            self.meter = Meter.of_shard(self.selection)
            seed = seed_of(seed, self._ranks.rank)
        else:
            self.selection = selection_or_default(selection, dataset, batch_size, seed)
            self.meter = Meter(self.selection.num_samples, batch_size)
            loader_options |= {"rank": self._ranks.rank, "num_ranks": self._ranks.size}
        self._together = self._ranks.size > 1 and not sharded  # one draw, shared out
        self._timed = TimedSelection(self.selection, self.meter)
        self.loader = BanditLoader(dataset, self._timed, num_workers=num_workers, seed=seed, **loader_options)
        self.optimizers = optimizers_or_default(optimizer, model, lr)
        delay = (0 if self.device.type == "cpu" else 1) if feedback_delay is None else feedback_delay
        check = getattr(self.selection, "check", lambda draw, norms: None)
        self._late = LateFeedback(_checks.integer("feedback_delay", delay, low=0), self._learn, check)
        measured = None if norms is None or not learns(self.selection) else norms
        self._norms = None if measured is None else PerSampleNorms(unwrapped(model), mode=measured)
        self._gradients_checked = self._ranks.size == 1
        self.epoch = 0
        self._closed = False
        self._resumed = False  # in the middle of an epoch
        self._draw: Draw | None = None  # of the batch that was handed out last, until it is weighed
        self._weighed: list[Weighed] = []  # batches since the last update
        self._taken: float | None = None  # when the last batch was handed out

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer, or the first of several."""
        return self.optimizers[0]

    def __len__(self) -> int:
        """How many batches an epoch has: floor(n/K)."""
        return len(self.loader)

    def __iter__(self) -> Iterator[SelectedBatch]:
        """Yield one epoch of batches, or what is left of it after a checkpoint was loaded."""
        batches = iter(self.loader)
        if not self._resumed:
            self.meter.start_epoch()
        self._resumed = False
        while (batch := self._next(batches)) is not None:
            yield batch
        self.epoch += 1

    def _next(self, batches: Iterator[SelectedBatch]) -> SelectedBatch | None:
        """Return the next batch, ready to be trained on."""
        self._note_training()
        start, drawing = time.perf_counter(), self.meter.seconds["selection"]
        batch = next(batches, None)
        if batch is None:
            return None
        if not self._weighed:
            self._forget_gradients()
        self._draw = batch.draw
        self.meter.note_draw(whole_of(batch.draw))
        if self.device.type != "cpu":
            batch = batch.to(self.device, non_blocking=True)
        self._taken = time.perf_counter()
        drawing = self.meter.seconds["selection"] - drawing
        self.meter.seconds["data"] += self._taken - start - drawing
        return batch

    def step(self, losses: Tensor, *, draw: Draw | None = None) -> Tensor:
        """Weigh the losses of a batch, go backward, step and learn.

        Args:
            losses: float[K], one loss per sample, in the order of the batch; float[K/W] with W ranks.
            draw: As in `weigh`.

        Returns:
            The weighted loss, detached: an unbiased estimate of the mean loss over the dataset, of all ranks together
            (if `sharded`, this rank's share of it, times W).

        Raises:
            ValueError: If `losses` is not one loss per sample.
            RuntimeError: If no batch is waiting, or it was weighed already.
            FloatingPointError: If a loss or a gradient norm is not finite. Parameters, optimizer and weights are as
                before, unless `feedback_delay` is above 0. The batch is given up. It is raised on all ranks (if
                `sharded`, on the one that has the sample, which must then end).
        """
        loss = self.weigh(losses, draw=draw)
        try:
            loss.backward()
        except BaseException:
            self.give_up()
            raise
        shared = self._update(None)
        return loss.detach() if shared is None else shared.to(loss.dtype)

    def weigh(self, losses: Tensor, *, draw: Draw | None = None, accumulate: int = 1) -> Tensor:
        """Return Σ loss_weights·losses of a batch, for you to go backward on.

        Args:
            losses: float[K], one loss per sample, in the order of the batch; float[K/W] with W ranks.
            draw: `batch.draw` of the batch that these losses are of, where batches are taken ahead of training. None:
                the batch that was taken last.
            accumulate: Over how many batches, at most, you add gradients up before `update`: the weights are divided by
                it, and the sum is the mean of that many unbiased estimates.

        Returns:
            A scalar: an unbiased estimate of the mean loss over the dataset, divided by `accumulate`. With several
            ranks, the average over the ranks is.

        Raises:
            ValueError, RuntimeError, FloatingPointError: As `step`; gradient norms, and with several ranks losses too,
                are checked in `update`. RuntimeError also if `accumulate` batches wait for `update` already: those are
                given up then.
        """
        _checks.integer("accumulate", accumulate, low=1)
        draw = self._waiting_draw() if draw is None else draw
        check_losses(losses, len(draw))
        if len(self._weighed) >= accumulate:
            waiting = len(self._weighed)
            self.give_up()
            raise RuntimeError(
                f"`update` must follow every {accumulate} batches that are weighed (accumulate={accumulate}), and "
                f"{waiting} were waiting for it: their sum would be too long a step. They are given up."
            )
        dtype = torch.float64 if losses.dtype == torch.float64 else torch.float32
        weights = draw.loss_weights * (self._ranks.size / accumulate)  # gradients are averaged over the ranks
        factors = torch.from_numpy(weights).to(losses.device, dtype, non_blocking=True)
        loss = (factors * losses).sum()
        if draw is self._draw:
            self._draw = None
        # One rank alone must not stop here: the others would wait for it in their backward pass.
        if self._together or losses.device.type != "cpu":
            self._weighed.append(Weighed(draw, factors, losses.detach()))
            return loss
        if not math.isfinite(loss.item()):
            refuse_nonfinite("loss", losses.detach().double().numpy(), [draw])
        self._weighed.append(Weighed(draw, factors))
        return loss

    def update(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Step the optimizers on the gradients that are there, and learn from the norms.

        Gradients are set to None when the next batch is taken, so that you can look at them until then.

        Args:
            scaler: The GradScaler that scaled the loss: it makes the step (or skips it, when gradients overflowed; the
                batch is then not learned from) and is updated.

        Raises:
            RuntimeError: If nothing was weighed since the last update, or `backward` is missing.
            FloatingPointError: As `step`.
        """
        self._update(scaler)

    def give_up(self) -> None:
        """Forget the batches that were weighed since the last `update`, and their gradients.

        For a loop that goes on after an error between `weigh` and `update`, memory that ran out for instance. `step`
        does it by itself.
        """
        self._weighed.clear()
        self._forget_gradients()

    def _update(self, scaler: torch.amp.GradScaler | None) -> Tensor | None:
        """Step and learn; return the loss of all ranks together where they share a draw."""
        if not self._weighed:
            raise RuntimeError("`update` must follow `weigh` and `backward`, and nothing was weighed since the last.")
        weighed, self._weighed = self._weighed, []
        norms = None if self._norms is None else unweighted(self._norms.take(), weighed)
        self._note_training()
        if scaler is None:
            loss = self._report(weighed, norms)  # first, because what it refuses must not be stepped on
            self._step_optimizers(None)
            return loss
        scale = scale_of(scaler, self.device)
        self._step_optimizers(scaler)
        overflowed = scale_of(scaler, self.device) < scale  # the trace that a skipped step leaves
        return self._report(weighed, None if norms is None else norms / scale, overflowed)

    def _report(self, weighed: list[Weighed], norms: Tensor | None, overflowed: Tensor | None = None) -> Tensor | None:
        """Send the feedback of these batches on its way, to all ranks where they share draws; apply what is due."""
        draws, losses = [whole_of(batch.draw) for batch in weighed], unchecked_losses(weighed)
        if not self._together or losses is None:
            if norms is not None or losses is not None:
                self._late.send(draws, norms, losses, overflowed)
            return None
        start = time.perf_counter()
        loss = torch.cat([batch.factors for batch in weighed]) @ losses.to(weighed[0].factors.dtype)
        shared = gather(self._ranks, [batch.draw for batch in weighed], norms, losses, loss)
        self.meter.seconds["selection"] += time.perf_counter() - start
        self._late.send(draws, None if norms is None else shared.norms, shared.losses, overflowed, shared.indices)
        return shared.loss

    def _learn(self, draw: Draw, norms: np.ndarray) -> None:
        self._timed.update(draw, norms)
        self.meter.note_norms(draw, norms)

    def _step_optimizers(self, scaler: torch.amp.GradScaler | None) -> None:
        if not self.optimizers:  # external
            return
        if not self._gradients_checked:
            check_same_gradients(self.optimizers)
            self._gradients_checked = True
        start = time.perf_counter()
        for optimizer in self.optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        self.meter.seconds["step"] += time.perf_counter() - start

    def _waiting_draw(self) -> Draw:
        if self._closed:
            raise RuntimeError("The trainer must not be closed, and `close` was called.")
        if self._draw is None:
            raise RuntimeError(
                "`weigh` and `step` must be called once for each batch, and no batch is waiting. "
                "Take one from the trainer: `for x, y in trainer`."
            )
        return self._draw

    def _forget_gradients(self) -> None:
        """Forget what is left of the step before, and gradients that somebody computed since."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if self._norms is not None:
            self._norms.clear()

    def _note_training(self) -> None:
        if self._taken is not None:
            self.meter.seconds["forward_backward"] += time.perf_counter() - self._taken
            self._taken = None

    def close(self) -> None:
        """Take the trainer off the model, which is then as it was. May be called twice."""
        self._closed = True
        if self._norms is not None:
            self._norms.close()

    def __enter__(self) -> AdamCB:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit.

        That is: model, optimizers, selection, position in the epoch, feedback on its way, meter (without its seconds),
        and the global generators of torch (the CPU's, and the device's), NumPy and Python, from which dropout and
        random transforms draw. Learning-rate schedulers are yours to save: see `save`.

        With several ranks it is the same on all of them but for the generators. A rank that loads what another one
        saved goes on with numbers of its own, derived from it, so that dropout differs between ranks.

        Raises:
            RuntimeError: If a batch was taken and not trained on yet: save between steps.
            NotImplementedError: If `fully_shard` spread the model over the ranks: no rank has all of it.
        """
        if self.optimizers and is_sharded_model(self.model):
            raise NotImplementedError(
                "A model under `fully_shard` must be saved by torch.distributed.checkpoint, with its optimizers. Save "
                "`trainer.selection.state_dict()` and `trainer.loader.state_dict()` beside it."
            )
        if self.optimizers and (self._draw is not None or self._weighed):
            raise RuntimeError("A state must be saved between steps, and a batch is waiting for `step` or `update`.")
        return _state.collect(self._parts, self.epoch, self._ranks.rank)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. The next `for` over the trainer goes on in the middle of the epoch.

        Raises:
            ValueError: If the state does not fit. Nothing is changed then.
        """
        try:
            _state.restore(self._parts, state, self._ranks.rank)
        except Exception as error:
            raise ValueError(f"`state` must fit this trainer: {error}") from error
        self.epoch, self._resumed = state["epoch"], state["loader"]["in_epoch"]
        self._draw, self._taken = None, None
        self._weighed.clear()
        self._gradients_checked = self._ranks.size == 1

    @property
    def _parts(self) -> _state.Parts:
        model = unwrapped(self.model) if self.optimizers else None  # external optimizers: a framework saves both
        return _state.Parts(model, self.optimizers, self.selection, self._late, self.meter, self.loader, self.device)

    def save(self, path: str | os.PathLike[str], extra: Any = None) -> None:
        """Write a checkpoint. A crash while writing leaves the older file whole.

        With several ranks, rank 0 writes, and the others may call it or not: it goes on with any number of ranks. If
        `sharded`, all ranks must call it; each writes its own shard beside the file.

        Args:
            path: Where to. Its folder must exist.
            extra: What else you need to continue, for instance `scheduler.state_dict()`: tensors, numbers, strings,
                None, and lists, tuples and dicts of these.

        Raises:
            OSError: If it cannot be written.
            TypeError: If `extra` holds something else. In both cases the older file is as it was.
        """
        if self._sharded and self._ranks.size > 1:
            _shards.write(path, self.state_dict(), extra, self._ranks, self.meter.steps, self.device)
        elif self._ranks.rank == 0:
            _checkpoint.write(path, self.state_dict(), extra)

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Continue from a checkpoint; see `load_state_dict`. No code from the file is run. All ranks call it.

        Returns:
            What `save` was given as `extra`.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If the file is damaged, foreign, of another format, or does not fit. Nothing is changed then.
        """
        state, extra = _checkpoint.read(path)
        if "shards" in state:
            state = _shards.read(path, state, self._ranks)
        try:
            self.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"The checkpoint {path} cannot be used. {error}") from error
        return extra
