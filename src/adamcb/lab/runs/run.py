"""One run: a method, a seed, and a training that can be stopped at any moment and goes on to the same numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from adamcb._seeds import derived_seed
from adamcb.lab.errors import Interrupted
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import Method, get_method
from adamcb.lab.results import Row, read_json, run_folder, write_arrays, write_json
from adamcb.lab.runs.building import (
    among_ranks,
    build_trainer,
    initial_model,
    learning_rates,
    scores_of,
    set_learning_rates,
    train_batch,
)
from adamcb.lab.runs.clock import Clock
from adamcb.lab.runs.evaluation import LOOK_SECONDS, evaluate, refuse_divergence
from adamcb.lab.runs.rows import RunRows
from adamcb.lab.runs.watch import Watch
from adamcb.lab.seeds import GLOBAL
from adamcb.lab.tasks.images import ImageTask
from adamcb.lab.tasks.metrics import column_of
from adamcb.lab.tasks.task import Task, fetch, to_device
from adamcb.training import Ranks

PICTURES = 200


@dataclass(frozen=True)
class Progress:
    """How far a run is. `row`: of results.csv, when an epoch has just been evaluated."""

    method: str
    seed: int
    step: int
    total_steps: int
    epoch: int
    loss: float
    row: Row | None = None


class Run:
    """Trains one method with one seed, writing to its folder; call `train`.

    Args:
        experiment: What is compared.
        reference: The method, as `get_method` takes it.
        seed: Decides the initial parameters, the same for all methods, and every random choice after them.
        task: What is trained on.
        folder: The result folder.
        report: Called with `Progress` now and then; raises `Interrupted` to stop the run, which then saves itself.
        checkpoint_seconds: The shortest time between two checkpoints. It becomes longer where saving would take more
            than a twentieth of the run's time.
    """

    def __init__(
        self,
        experiment: Experiment,
        reference: str | Method,
        seed: int,
        task: Task,
        folder: Path,
        report: Callable[[Progress], None],
        *,
        checkpoint_seconds: float = 10.0,
    ) -> None:
        self.experiment, self.seed, self.report = experiment.completed(task), seed, report
        self.task = task.prepared(seed)
        self.method = get_method(reference)
        self.folder, self.place = folder, run_folder(folder, self.method.name, seed)
        size = len(self.task.train)
        self.total_steps = self.experiment.total_steps(size)
        self.steps_per_epoch = self.experiment.steps_per_epoch(size)
        self.ranks = Ranks.current()
        self.model = initial_model(self.task, seed, experiment.device)
        self._called = among_ranks(self.model, self.ranks)
        assert self.experiment.batch_size is not None
        norms = scores_of(self.experiment, self.method, self.task) in (None, "exact", "last-layer")
        self.watch = Watch(size, self.experiment.batch_size, norms=norms)
        self.trainer = build_trainer(self.experiment, self.method, self.task, self.model, seed, observers=(self.watch,))
        self.lr = learning_rates(self.trainer)
        self.rows = RunRows(finer=self.experiment.evaluations is not None)
        self.clock = Clock(accelerator=self.trainer.device.type != "cpu")
        self.checkpoint_seconds = checkpoint_seconds
        self._loss = math.nan
        self._next_look = self._next_save = 0.0

    @property
    def step(self) -> int:
        """How many steps were made."""
        return self.watch.num_draws

    @property
    def seconds(self) -> float:
        """How long the training took so far, without evaluations: processor time, or an accelerator's."""
        return self.clock.seconds

    def train(self) -> None:
        """Train to the end, from the last checkpoint if there is one; leave `done.json`, samples and pictures."""
        self.place.mkdir(parents=True, exist_ok=True)
        if not self.ranks.rank:
            self.trainer.save(self.place / "checkpoint.pt", check=True)  # fails now, not after hours
        # What dropout draws from; a checkpoint knows how far it was.
        own = (self.ranks.rank,) if self.ranks.rank else ()
        torch.manual_seed(derived_seed(self.seed, GLOBAL, *own))
        self._resume()
        if self.ranks.size > 1:
            dist.barrier()  # or one rank might see the first checkpoint of this run and not begin with the others
        diverged = None
        try:
            self._train_and_evaluate()
        except FloatingPointError as error:
            diverged = f"step {self.step}: {error}"
        finally:
            self.trainer.close()
        if self.ranks.rank:
            return
        self._write_samples()
        counts = {"num_draws": self.watch.num_draws, "num_chosen": self.watch.num_chosen}
        write_json(self.place / "done.json", {**self.rows.as_dict(), **counts, "diverged": diverged})
        for leftover in ("checkpoint.pt", "progress.json"):
            (self.place / leftover).unlink(missing_ok=True)

    def _train_and_evaluate(self) -> None:
        self._next_save = time.monotonic() + self.checkpoint_seconds
        while True:
            self._evaluate_if_due()
            if self.step == self.total_steps:
                refuse_divergence([row["train_loss"] for row in self.rows.results])
                return
            self._train_epoch()

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, on the clock."""
        self.model.train()
        self.clock.start()
        for batch in self.trainer:
            self._set_lr()
            loss = train_batch(self.trainer, self.task, self.method, self._called, batch)
            if time.perf_counter() >= self._next_look:
                self._synchronize()
                self.clock.stop()
                self._loss = loss.item()
                self._look()
                self.clock.start()
            if self.step == self.total_steps:
                break
            if self.step % self.steps_per_epoch and self._is_due():
                self._synchronize()
                self.clock.stop()
                self._evaluate_if_due()
                self.model.train()
                self.clock.start()
        self._synchronize()
        self.clock.stop()

    def _set_lr(self) -> None:
        if self.experiment.schedule != "constant":
            factor = self.experiment.lr_factor(self.step - 1, self.total_steps)
            set_learning_rates(self.trainer, self.lr, factor)

    def _synchronize(self) -> None:
        if self.trainer.device.type != "cpu":
            torch.accelerator.synchronize()

    def _look(self, row: Row | None = None) -> None:
        """Report, and save if it is time or somebody wants to stop."""
        try:
            epoch = -(-self.step // self.steps_per_epoch)
            self.report(Progress(self.method.name, self.seed, self.step, self.total_steps, epoch, self._loss, row))
        except Interrupted:
            self._save()
            raise
        if time.monotonic() >= self._next_save:
            self._save()
        self._next_look = time.perf_counter() + LOOK_SECONDS

    def _is_due(self) -> bool:
        """Return whether an evaluation belongs here."""
        if self.step in (0, self.total_steps):
            return True
        times = self.experiment.evaluations or 1
        within = self.step % self.steps_per_epoch
        return within in {round(part * self.steps_per_epoch / times) for part in range(times)}

    def _evaluate_if_due(self) -> None:
        """Note losses and metrics if that belongs here and was not done before the run was stopped."""
        if not self._is_due() or self.rows.has(self.step):
            return
        row = self._evaluate()
        if self.step % self.steps_per_epoch and self.step != self.total_steps:
            self.rows.between.append({**row, "epoch": self.step / self.steps_per_epoch})
            self._look()
            return
        self.rows.results.append(row)
        readings = {**self.watch.read(self.trainer.selection), "samples": row["samples"]}
        self.rows.selection.append({"epoch": row["epoch"], "step": self.step, **readings})
        self._loss = row["train_loss"]
        self._look(row)

    def _evaluate(self) -> Row:
        """Return losses and metrics on all data, measured off the clock."""
        row: Row = {"epoch": -(-self.step // self.steps_per_epoch), "step": self.step, **self.clock.read()}
        row["samples"] = self.watch.samples_drawn
        for split in ("train", "test"):
            found = evaluate(self.task, self.model, getattr(self.task, split), self.trainer.device, self._look)
            row |= {f"{split}_{column_of(name)}": value for name, value in found.items()}
        return row

    def _save(self) -> None:
        """Write a checkpoint. The rows go first: those that a checkpoint does not know of are dropped on resuming."""
        if self.ranks.rank:
            return
        start = time.monotonic()
        write_json(self.place / "progress.json", self.rows.as_dict())
        extra = {"clock": self.clock.read(), "watch": self.watch.state_dict()}
        self.trainer.save(self.place / "checkpoint.pt", extra=extra)
        now = time.monotonic()
        self._next_save = now + max(self.checkpoint_seconds, 20 * (now - start))

    def _resume(self) -> None:
        if not (self.place / "checkpoint.pt").is_file():
            return
        extra = self.trainer.load(self.place / "checkpoint.pt")
        self.clock.set(extra["clock"])
        self.watch.load_state_dict(extra["watch"])
        self.rows.load(read_json(self.place / "progress.json"), until=self.step)

    def _write_samples(self) -> None:
        """Write what training saw of every sample, and pictures of the most suspicious ones."""
        table, name = self.trainer.samples(), f"{self.method.name}-seed{self.seed}.npz"
        (self.folder / "samples").mkdir(exist_ok=True)
        write_arrays(self.folder / "samples" / name, **table.as_dict())
        if not isinstance(self.task, ImageTask) or not self.trainer.selection.learns:
            return
        top = table.top(PICTURES)
        images, labels = fetch(self.task.data.train, top.index.tolist())
        self.model.eval()
        with torch.no_grad():
            logits = self.model(to_device(images, self.trainer.device)).cpu()
        pixels = self.task.data.to_pixels(images).numpy()
        (self.folder / "chosen").mkdir(exist_ok=True)
        write_arrays(
            self.folder / "chosen" / name,
            index=top.index,
            count=top.count,
            label=labels.numpy(),
            prediction=logits.argmax(1).numpy(),
            loss=top.mean_loss,
            image=pixels[..., 0] if pixels.shape[-1] == 1 else pixels,
        )
