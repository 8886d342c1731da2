"""What a run is made of: model, selection, optimizer and trainer, from an experiment, a method and a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Subset

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, SelectedBatch, Selection
from adamcb._seeds import derived_seed
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import BUILDERS, Method
from adamcb.lab.methods.rivals import Scorer
from adamcb.lab.seeds import INITIAL_MODEL, SELECTION
from adamcb.lab.tasks.task import Task
from adamcb.training import Observer, Ranks


def initial_model(task: Task, seed: int, device: str) -> nn.Module:
    """Return the model that every method of a seed starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, INITIAL_MODEL))
        model = task.model()
    return model.to(device)


def among_ranks(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return what to call in training: with several ranks, it averages gradients over them."""
    return DistributedDataParallel(model) if ranks.size > 1 else model


def build_selection(
    experiment: Experiment, method: Method, num_samples: int, seed: int, *, scorer: Scorer | None = None
) -> Selection | None:
    """Return a method's selection, with random numbers that the seed decides; None: as `AdamCB` comes."""
    exploration = method.exploration if experiment.exploration is None else experiment.exploration
    settings: dict[str, Any] = {"generator": torch.Generator().manual_seed(derived_seed(seed, SELECTION))}
    if exploration is not None:
        settings["exploration"] = exploration
    if method.selection is not None:
        known = {"total_steps": experiment.total_steps(num_samples), "scorer": scorer}
        needed = {name: known[name] for name in method.needs}
        return method.selection(num_samples, experiment.batch_size, **settings, **needed)
    if exploration is None:
        return None
    assert experiment.batch_size is not None
    kind: Any = type(default_selection(num_samples, experiment.batch_size))
    smallest = _min_batch_size(experiment, method)
    return kind(num_samples, experiment.batch_size, min_batch_size=smallest, **settings)


def default_selection(num_samples: int, batch_size: int) -> Selection:
    """Return what `AdamCB` chooses by if it is not told."""
    with AdaptiveLoader(nn.Linear(1, 1), range(num_samples), batch_size) as loader:
        return loader.selection


def _min_batch_size(experiment: Experiment, method: Method) -> int | None:
    """Return how small batches may become; it is for `AdamCB`'s own selection only."""
    if method.selection is not None:
        return None
    return experiment.min_batch_size if method.min_batch_size is None else method.min_batch_size


def scores_of(experiment: Experiment, method: Method) -> Any:
    """Return what the selection learns from; None: as `AdamCB` comes, from norms of gradients."""
    return experiment.scores if method.scores is None else method.scores


def build_optimizer(experiment: Experiment, method: Method, task: Task, model: nn.Module) -> Optimizer:
    """Return the optimizer: the experiment's, if it has one and the method is not about its own."""
    asked = experiment.optimizer is not None and not method.keeps_optimizer
    build = BUILDERS[experiment.optimizer] if asked and experiment.optimizer is not None else method.optimizer
    lr = next(value for value in (experiment.lr, method.lr, task.lr) if value is not None)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    more = {"weight_decay": experiment.weight_decay} if experiment.weight_decay else {}
    return build(parameters, lr=lr, **more)


def build_trainer(
    experiment: Experiment,
    method: Method,
    task: Task,
    model: nn.Module,
    seed: int,
    *,
    observers: Sequence[Observer] = (),
) -> AdamCB:
    """Return the trainer of a run. The experiment must be complete."""
    assert experiment.batch_size is not None
    scorer = Scorer(model, task.train, experiment.device) if "scorer" in method.needs else None
    selection = build_selection(experiment, method, len(task.train), seed, scorer=scorer)
    options: dict[str, Any] = {"observers": observers, "seed": derived_seed(seed, SELECTION)}
    scores = scores_of(experiment, method)
    if scores is not None:
        options["scores"] = scores
    if selection is None:
        options["min_batch_size"] = _min_batch_size(experiment, method)
    optimizer = build_optimizer(experiment, method, task, model)
    return AdamCB(model, task.train, experiment.batch_size, selection=selection, optimizer=optimizer, **options)


def train_batch(trainer: AdamCB, task: Task, model: nn.Module, batch: SelectedBatch) -> Tensor:
    """Make one step, and return the weighted loss."""
    return trainer.step(task.losses(model, batch.data))


def warm_up(experiment: Experiment, method: Method, task: Task) -> None:
    """Train a throwaway model for two steps, so that compiling and the first touch are on nobody's clock."""
    assert experiment.batch_size is not None
    ranks = Ranks.current()
    size = min(experiment.batch_size, len(task.train) - 1, 4 * ranks.size)
    size -= size % ranks.size
    few = replace(task, train=Subset(task.train, range(size + 1)))
    model = initial_model(task, 0, experiment.device)
    small = replace(experiment, batch_size=size, max_steps=1, min_batch_size=None)
    called = among_ranks(model, ranks)
    with build_trainer(small, replace(method, min_batch_size=None), few, model, 0) as trainer:
        for _ in range(2):  # epochs: some methods choose from the second on
            for batch in trainer:
                train_batch(trainer, few, called, batch)
    _draw_by_weight(size)


def _draw_by_weight(size: int) -> None:
    """Make a few draws with an open gate: in the two steps of a warm-up it does not open."""
    generator = torch.Generator().manual_seed(0)
    bandit = CombinatorialBandit(2 * size, size, gate=None, generator=generator)
    for selection in (bandit, default_selection(2 * size, size)):
        for _ in range(3):
            draw = selection.draw()
            selection.update(draw, np.arange(1.0, len(draw) + 1.0))
