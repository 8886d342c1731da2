"""What a run is made of: model, selection and trainer, from an experiment, a method and a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from adamcb import AdamCB, CombinatorialBandit, SelectedBatch, Selection, UniformSelection
from adamcb._seeds import derived_seed
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import Method
from adamcb.lab.methods.rivals import Scorer
from adamcb.lab.tasks.datasets import ImageData
from adamcb.lab.tasks.models import build_model
from adamcb.training import Ranks

# What the seeds of a run are for.
INITIAL_MODEL, SELECTION, GLOBAL, WRONG_LABELS = range(4)


def initial_model(experiment: Experiment, data: ImageData, seed: int) -> nn.Module:
    """Return the model that every method of a seed starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, INITIAL_MODEL))
        model = build_model(experiment.model, image_shape=data.image_shape, num_classes=data.num_classes)
    return model.to(experiment.device)


def among_ranks(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return what to call in training: with several ranks, it averages gradients over them."""
    return DistributedDataParallel(model) if ranks.size > 1 else model


def build_selection(
    experiment: Experiment, method: Method, num_samples: int, seed: int, *, scorer: Scorer | None = None
) -> Any:
    """Return a method's selection, with random numbers that the seed decides."""
    exploration = method.exploration if experiment.exploration is None else experiment.exploration
    generator = torch.Generator().manual_seed(derived_seed(seed, SELECTION))
    known = {"total_steps": experiment.total_steps(num_samples), "scorer": scorer}
    needed = {name: known[name] for name in method.needs}
    return method.selection(num_samples, experiment.batch_size, exploration=exploration, generator=generator, **needed)


def build_trainer(
    experiment: Experiment, method: Method, model: nn.Module, selection: Any, samples: TensorDataset
) -> AdamCB:
    """Return the trainer of a run."""
    lr = method.lr if experiment.lr is None else experiment.lr
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return AdamCB(
        model,
        samples,
        selection.batch_size,
        selection=selection,
        optimizer=method.optimizer(parameters, lr=lr),
        norms=_norms(method, selection),
    )


def learns(selection: Selection) -> bool:
    """Return whether a selection learns from scores."""
    return getattr(selection, "learns", not isinstance(selection, UniformSelection))


def _norms(method: Method, selection: Selection) -> str | None:
    if method.scores == "losses" or not learns(selection):
        return None
    assert not callable(method.scores)
    return method.scores or "exact"


def warm_up(experiment: Experiment, method: Method, data: ImageData) -> None:
    """Train a throwaway model for two steps, so that compiling and the first touch are on nobody's clock."""
    ranks = Ranks.current()
    size = min(experiment.batch_size, len(data.train) - 1, 4 * ranks.size)
    size -= size % ranks.size
    samples = TensorDataset(*(tensor[: size + 1] for tensor in data.train.tensors))
    model = initial_model(experiment, data, 0)
    small = replace(experiment, batch_size=size, max_steps=1)
    called = among_ranks(model, ranks)
    scorer = Scorer(model, samples, experiment.device)
    selection = build_selection(small, method, len(samples), 0, scorer=scorer)
    with build_trainer(small, method, model, selection, samples) as trainer:
        for _ in range(2):  # epochs: some methods choose from the second on
            for batch in trainer:
                train_batch(trainer, called, method, selection, batch)
    _draw_by_weight(size)


def _draw_by_weight(size: int) -> None:
    """Make a few draws with an open gate: in the two steps of a warm-up it does not open."""
    generator = torch.Generator().manual_seed(0)
    bandit = CombinatorialBandit(2 * size, size, feedback="scale-free", min_gain=0.0, generator=generator)
    for _ in range(3):
        bandit.update(bandit.draw(), np.arange(1.0, size + 1.0))


def train_batch(
    trainer: AdamCB, model: nn.Module, method: Method, selection: Selection, batch: SelectedBatch
) -> Tensor:
    """Make one step, let the selection learn from it, and return the weighted loss."""
    inputs, labels = batch
    losses = F.cross_entropy(model(inputs), labels, reduction="none")
    loss = trainer.step(losses)
    if method.scores == "losses":
        # Not through the trainer, and past the watch: they take what they hear for norms of gradients.
        selection.update(batch.draw, losses.detach().double().cpu().numpy())
    return loss
