"""One run of `adamcb bench budget`: a method on a task with a part of the budget, to the end of its schedule.

Every method gets its budget in its own way, and its learning rate falls to 0 over exactly the steps that it makes:

- adam: a part of the steps, with batches of K;
- small-batches: all steps, with batches of a part of K;
- random-pruning: all epochs, over a part of the samples that is chosen once;
- infobatch: a part of the epochs, from each of which it leaves samples out;
- adamcb-quieter: a part of the steps, with batches of K;
- adamcb-smaller: a part of the steps, with batches as small as the noise of K allows, down to 16.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import Subset

from adamcb import AdamCB
from adamcb._seeds import derived_seed
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import METHODS, RIVALS, Method
from adamcb.lab.methods.rivals import InfoBatch
from adamcb.lab.results.columns import Row
from adamcb.lab.runs.building import (
    build_trainer,
    initial_model,
    learning_rates,
    set_learning_rates,
    train_batch,
    warm_up,
)
from adamcb.lab.runs.clock import Clock
from adamcb.lab.runs.evaluation import evaluate
from adamcb.lab.runs.watch import Watch
from adamcb.lab.seeds import GLOBAL, SUBSET
from adamcb.lab.tasks.metrics import column_of
from adamcb.lab.tasks.schedules import cosine
from adamcb.lab.tasks.task import Task

SMALLEST_BATCH = 16
LABELS = {
    "adam": METHODS["adam"].label,
    "small-batches": METHODS["small-batches"].label,
    "random-pruning": "Adam, random pruning",
    "infobatch": RIVALS["infobatch"].label,
    "adamcb-quieter": "AdamCB, quieter",
    "adamcb-smaller": METHODS["adamcb-smaller"].label,
}


@dataclass(frozen=True)
class Plan:
    """How a method spends its budget.

    Attributes:
        task: What is trained on; perhaps a part of the samples.
        method: Who chooses.
        batch_size: K.
        steps: How many; None: until the selection's own `progress` is 1.
    """

    task: Task
    method: Method
    batch_size: int
    steps: int | None


def make_plan(name: str, task: Task, epochs: int, fraction: float, seed: int) -> Plan:
    """Return how a method spends `fraction` of a task's budget, which is `epochs` epochs with its batch size."""
    size, n = task.batch_size, len(task.train)
    all_steps = epochs * (n // size)
    part = max(1, round(fraction * all_steps))
    if name == "small-batches":
        return Plan(task, METHODS["adam"], max(1, round(fraction * size)), all_steps)
    if name == "random-pruning":
        kept = min(n, max(size + 1, round(fraction * n)))
        generator = torch.Generator().manual_seed(derived_seed(seed, SUBSET))
        chosen = torch.randperm(n, generator=generator)[:kept].tolist()
        return Plan(replace(task, train=Subset(task.train, chosen)), METHODS["adam"], size, epochs * (kept // size))
    if name == "infobatch":
        selection = partial(InfoBatch, total_epochs=fraction * epochs)
        return Plan(task, replace(RIVALS["infobatch"], selection=selection, needs=()), size, None)
    smallest = SMALLEST_BATCH if name == "adamcb-smaller" else None
    ours = replace(METHODS["adamcb"], name=name, min_batch_size=smallest and min(smallest, size))
    return Plan(task, METHODS["adam"] if name == "adam" else ours, size, part)


def run_budget(name: str, task: Task, *, epochs: int, fraction: float, seed: int, lr: float | None) -> Row:
    """Return what a run ended with, and what it took; `diverged` instead of losses if they are not finite."""
    task = task.prepared(seed)
    plan = make_plan(name, task, epochs, fraction, seed)
    # One optimizer for all, so that nothing but the choice of batches differs.
    experiment = Experiment(
        batch_size=plan.batch_size, epochs=epochs, optimizer=task.optimizer, schedule="cosine", lr=lr
    ).completed(task)
    warm_up(experiment, plan.method, plan.task)
    model = initial_model(task, seed, experiment.device)
    watch, clock = Watch(len(plan.task.train), plan.batch_size), Clock()
    torch.manual_seed(derived_seed(seed, GLOBAL))
    row: Row = {"epochs": epochs, "lr": task.lr if lr is None else lr, "diverged": ""}
    with build_trainer(experiment, plan.method, plan.task, model, seed, observers=(watch,)) as trainer:
        try:
            _train(plan, trainer, clock)
            row |= _measure(task, model)
        except FloatingPointError as error:
            row["diverged"] = str(error)
    row |= {"steps": watch.num_draws, "samples": watch.samples_drawn}
    row |= {"seconds": clock.seconds, "wall_seconds": clock.wall_seconds}
    return row


def _train(plan: Plan, trainer: AdamCB, clock: Clock) -> None:
    """Train to the end of the schedule, on the clock."""
    rates = learning_rates(trainer)
    batches = itertools.chain.from_iterable(itertools.repeat(trainer))
    trainer.model.train()
    clock.start()
    for done in itertools.count():
        progress = _progress(plan, trainer, done)
        if progress >= 1.0:
            break
        set_learning_rates(trainer, rates, cosine(progress, 1.0))
        train_batch(trainer, plan.task, plan.method, trainer.model, next(batches))
    clock.stop()


def _progress(plan: Plan, trainer: AdamCB, steps_done: int) -> float:
    if plan.steps is not None:
        return steps_done / plan.steps
    selection: Any = trainer.selection
    return selection.progress


def _measure(task: Task, model: torch.nn.Module) -> Row:
    """Return losses and metrics on all samples of the task."""
    device = next(model.parameters()).device
    row: Row = {}
    for split in ("train", "test"):
        found = evaluate(task, model, getattr(task, split), device, _do_nothing)
        row |= {f"{split}_{column_of(name)}": value for name, value in found.items()}
    return row


def _do_nothing() -> None:
    """Do nothing between batches."""
