"""What the ranks of the tests do: the same code for any number of processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adamcb import AdamCB, CombinatorialBandit
from adamcb._seeds import derived_seed
from adamcb.data import whole_of
from adamcb.training._ranks import Ranks, unwrapped
from tests.training.problem import cnn, digits, eager, losses_of, mlp

SAMPLES, BATCH_SIZE = 200, 16


def in_ranks(model: nn.Module) -> nn.Module:
    """Return the model as a user would wrap it, which in one process is not at all."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    return model if alone else DistributedDataParallel(model)


def new_trainer(kind: str = "mlp", **options: Any) -> AdamCB:
    model = (cnn if kind == "cnn" else mlp)(dtype=torch.float64)
    options.setdefault("selection", new_selection(options.get("sharded", False)))
    return AdamCB(in_ranks(model), digits(SAMPLES, torch.float64), BATCH_SIZE, lr=0.01, **options)


def new_selection(sharded: bool) -> CombinatorialBandit:
    """Return what draws by its weights from the start, for all samples or for this rank's."""
    if not sharded:
        return eager(SAMPLES, BATCH_SIZE)
    ranks = Ranks.current()
    own = len(range(ranks.rank, SAMPLES, ranks.size))
    return eager(own, BATCH_SIZE // ranks.size, derived_seed(0, ranks.rank) if ranks.rank else 0)


def train(trainer: AdamCB, steps: int) -> dict[str, Any]:
    """Make this many steps, and return all that they came to."""
    drawn, losses = [], []
    while len(losses) < steps:
        for batch in trainer:
            drawn.append(whole_of(batch.draw).indices.tolist())
            x, y = batch
            losses.append(trainer.step(losses_of(trainer.model, x, y)).item())
            if len(losses) == steps:
                break
    return {"draws": drawn, "losses": losses, **result(trainer)}


def result(trainer: AdamCB) -> dict[str, Any]:
    flat = torch.cat([parameter.detach().flatten() for parameter in unwrapped(trainer.model).parameters()])
    readings = {name: value for name, value in trainer.meter.as_dict().items() if not name.startswith("seconds")}
    weights = getattr(trainer.selection, "weights", np.empty(0))
    samples = trainer.samples()
    counted = np.stack([samples.index, samples.count, samples.last_score, samples.mean_score, samples.mean_loss])
    samples = counted[:, np.argsort(samples.index)]
    return {"parameters": flat.numpy(), "weights": weights, "readings": readings, "samples": samples}


def train_anew(steps: int, kind: str = "mlp", options: dict[str, Any] | None = None) -> dict[str, Any]:
    with new_trainer(kind, **(options or {})) as trainer:
        return train(trainer, steps)
