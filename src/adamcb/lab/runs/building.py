"""What a run is made of: model, selection, optimizer and trainer, from an experiment, a method and a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Subset

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, SelectedBatch, Selection
from adamcb._seeds import derived_seed
from adamcb.lab.errors import LabError
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import BUILDERS, Method
from adamcb.lab.methods.rivals import Scorer
from adamcb.lab.seeds import SELECTION
from adamcb.lab.tasks.task import Task, fetch, initial_model, to_device
from adamcb.training import Observer, Ranks, generator_states, set_generator_states

_Kind = TypeVar("_Kind")


def among_ranks(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return what to call in training: with several ranks, it averages gradients over them."""
    return DistributedDataParallel(model) if ranks.size > 1 else model


def build_selection(
    experiment: Experiment, method: Method, task: Task, model: nn.Module, seed: int
) -> Selection | None:
    """Return a method's selection, with random numbers that the seed decides; None: as `AdamCB` comes."""
    num_samples = len(task.train)
    exploration = method.exploration if experiment.exploration is None else experiment.exploration
    generator = torch.Generator().manual_seed(derived_seed(seed, SELECTION))
    if method.selection is not None:
        needed = {name: _NEEDED[name](experiment, task, model) for name in method.needs if name != "exploration"}
        if exploration is not None and method.takes_exploration:
            needed["exploration"] = exploration
        made = method.selection(num_samples, experiment.batch_size, generator=generator, **needed)
        return _checked("selection", method, made, Selection)
    if exploration is None:
        return None
    assert experiment.batch_size is not None
    kind: Any = type(default_selection(num_samples, experiment.batch_size))
    settings: dict[str, Any] = {"exploration": exploration, "min_batch_size": _min_batch_size(experiment, method)}
    return kind(num_samples, experiment.batch_size, generator=generator, **settings)


def labels_of(task: Task) -> np.ndarray:
    """Return int64[n], the class of every training sample: the last part of it.

    Raises:
        LabError: That is not a whole number for each sample.
    """
    batch = fetch(task.train, range(len(task.train)))
    labels = batch[-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else None
    if not isinstance(labels, Tensor) or labels.dim() != 1 or not bool((labels == labels.long()).all()):
        raise LabError(f"`train` of {task.name} must have samples that end with a class, for a method that needs it.")
    return labels.long().numpy()


def _losses_of(task: Task, model: nn.Module, device: str) -> Callable[[np.ndarray], np.ndarray]:
    def losses(indices: np.ndarray) -> np.ndarray:
        batch = to_device(fetch(task.train, indices.tolist()), device)
        with torch.no_grad():
            return task.losses(model, batch).double().cpu().numpy()

    return losses


# What the functions of a method must return.
_WORDS = {"selection": "an adamcb.Selection", "optimizer": "a torch.optim.Optimizer, or several"}
# How to make what a selection may need, beside γ.
_NEEDED: dict[str, Callable[[Experiment, Task, nn.Module], Any]] = {
    "total_steps": lambda experiment, task, model: experiment.total_steps(len(task.train)),
    "scorer": lambda experiment, task, model: Scorer(model, task.train, experiment.device),
    "losses": lambda experiment, task, model: _losses_of(task, model, experiment.device),
    "labels": lambda experiment, task, model: labels_of(task),
}


def default_selection(num_samples: int, batch_size: int) -> Selection:
    """Return what `AdamCB` chooses by if it is not told."""
    with AdaptiveLoader(nn.Linear(1, 1), range(num_samples), batch_size) as loader:
        return loader.selection


def _min_batch_size(experiment: Experiment, method: Method) -> int | None:
    """Return how small batches may become; it is for `AdamCB`'s own selection only."""
    if method.selection is not None:
        return None
    if method.min_batch_size is None:
        return experiment.min_batch_size
    assert experiment.batch_size is not None
    return min(max(method.min_batch_size, experiment.batch_size // 8), experiment.batch_size)


def scores_of(experiment: Experiment, method: Method, task: Task) -> Any:
    """Return what the selection learns from: as the method says, or the experiment, or the task; None: nobody does."""
    return next((each.scores for each in (method, experiment, task) if each.scores is not None), None)


def build_optimizer(experiment: Experiment, method: Method, task: Task, model: nn.Module) -> Any:
    """Return the method's optimizer, or the experiment's if it brings none. Muon is a tuple."""
    assert experiment.optimizer is not None
    build = method.optimizer or BUILDERS[experiment.optimizer]
    lr = next(value for value in (experiment.lr, method.lr, task.lr) if value is not None)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    more = {"weight_decay": experiment.weight_decay} if experiment.weight_decay else {}
    made = build(parameters, lr=lr, **more)
    for each in made if isinstance(made, (tuple, list)) else (made,):
        _checked("optimizer", method, each, Optimizer)
    return made


def _checked(role: str, method: Method, made: Any, kind: type[_Kind]) -> _Kind:
    """Return what a method's function made, or raise: `AdamCB` would train with its own instead of None."""
    if not isinstance(made, kind):
        rule = f"`{role}` of the method {method.name!r} must return {_WORDS[role]}"
        raise LabError(f"{rule}, got a {type(made).__name__}.")
    return made


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
    selection = build_selection(experiment, method, task, model, seed)
    options: dict[str, Any] = {"observers": observers, "seed": derived_seed(seed, SELECTION)}
    scores = scores_of(experiment, method, task)
    if scores is not None:
        options["scores"] = scores
    if selection is None:
        options["min_batch_size"] = _min_batch_size(experiment, method)
    optimizer = build_optimizer(experiment, method, task, model)
    return AdamCB(model, task.train, experiment.batch_size, selection=selection, optimizer=optimizer, **options)


def check_methods(experiment: Experiment, task: Task, model: nn.Module) -> None:
    """Build the trainer of every method on a model that is thrown away. The experiment must be complete.

    Raises:
        LabError: An option does not go with a method; the message names both.
    """
    device = torch.device(experiment.device)
    states = generator_states(device)
    try:
        for method in experiment.resolve_methods():
            try:
                build_trainer(experiment, method, task, model, 0).close()
            except (ValueError, TypeError, NotImplementedError) as error:
                message = " ".join(str(error).split())
                raise LabError(f"The method {method.name!r} cannot be trained with these options: {message}") from error
    finally:
        set_generator_states(device, states)


def learning_rates(trainer: AdamCB) -> list[float]:
    """Return the learning rate of every group of parameters, as it is now."""
    return [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]


def set_learning_rates(trainer: AdamCB, rates: Sequence[float], factor: float) -> None:
    """Set the learning rate of every group to a factor times what `learning_rates` returned at the start."""
    groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * factor


def train_batch(trainer: AdamCB, task: Task, method: Method, model: nn.Module, batch: SelectedBatch) -> Tensor:
    """Make one step, and return the weighted loss."""
    losses = task.losses(model, batch.data)
    return trainer.step(losses if method.loss is None else method.loss(losses))


def warm_up(experiment: Experiment, method: Method, task: Task) -> None:
    """Train a throwaway model for two steps, so that compiling is not timed. If it diverges, the run will say so."""
    assert experiment.batch_size is not None
    ranks = Ranks.current()
    size = min(experiment.batch_size, len(task.train) - 1, 4 * ranks.size)
    size -= size % ranks.size
    few = replace(task, train=Subset(task.train, range(size + 1)))
    model = initial_model(task, 0, experiment.device)
    small = replace(experiment, batch_size=size, max_steps=1, min_batch_size=None)
    called = among_ranks(model, ranks)
    trained = build_trainer(small, replace(method, min_batch_size=None), few, model, 0)
    with contextlib.suppress(FloatingPointError), trained as trainer:
        for _ in range(2):  # epochs: some methods choose from the second on
            for batch in trainer:
                train_batch(trainer, few, method, called, batch)
    _draw_by_weight(size)


def _draw_by_weight(size: int) -> None:
    """Make a few draws with an open gate: in the two steps of a warm-up it does not open."""
    generator = torch.Generator().manual_seed(0)
    bandit = CombinatorialBandit(2 * size, size, gate=None, generator=generator)
    for selection in (bandit, default_selection(2 * size, size)):
        for _ in range(3):
            draw = selection.draw()
            selection.update(draw, np.arange(1.0, len(draw) + 1.0))
