"""What a user gives to `AdamCB`: checked, and completed by defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from adamcb import _checks
from adamcb.optim import AdamX
from adamcb.selection import CombinatorialBandit, Selection, ShardedSelection, UniformSelection
from adamcb.selection._sharded import shard_size
from adamcb.training._ranks import Ranks


def check_losses(losses: Any, size: int) -> None:
    """Raise unless `losses` is one loss for each of `size` samples, with a gradient."""
    if not isinstance(losses, Tensor):
        raise TypeError(f"`losses` must be a tensor, got losses of type {type(losses).__name__}.")
    if losses.dim() == 0:
        raise ValueError(
            '`losses` must be one per sample, got a single number. Compute them with reduction="none": '
            'F.cross_entropy(model(x), y, reduction="none").'
        )
    if losses.shape != (size,):
        raise ValueError(
            f"`losses` must have shape ({size},), one loss per sample, got losses of shape {tuple(losses.shape)}."
        )
    if not losses.requires_grad:
        raise ValueError("`losses` must depend on the model's parameters, got losses without a gradient.")


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's parameters are."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def selection_or_default(selection: Selection | None, dataset: Any, batch_size: int, seed: int) -> Selection:
    """Return `selection`, or the default one for this dataset."""
    if selection is None:
        return _default(_length(dataset), batch_size, _checks.integer("seed", seed, low=0))
    if not isinstance(selection, Selection):
        raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
    if selection.batch_size != batch_size:
        raise ValueError(f"`batch_size` must be the selection's, {selection.batch_size}, got batch_size={batch_size}.")
    return selection


def shard_or_default(
    selection: Selection | None, dataset: Any, batch_size: int, seed: int, ranks: Ranks
) -> ShardedSelection:
    """Return the selection of this rank's shard: around `selection`, or around the default one."""
    num_samples, own_batch = _length(dataset), batch_size // ranks.size
    size = shard_size(num_samples, ranks.rank, ranks.size)
    if selection is None:
        selection = _default(size, own_batch, seed_of(_checks.integer("seed", seed, low=0), ranks.rank))
    elif not isinstance(selection, Selection):
        raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
    if (selection.num_samples, selection.batch_size) != (size, own_batch):
        rule = f"draw {own_batch} of the {size} samples of rank {ranks.rank}, because sharded=True"
        got = f"selection.num_samples={selection.num_samples} and selection.batch_size={selection.batch_size}"
        raise ValueError(f"`selection` must {rule}, got {got}.")
    return ShardedSelection(selection, num_samples, shard=ranks.rank, num_shards=ranks.size)


def _default(num_samples: int, batch_size: int, seed: int) -> CombinatorialBandit:
    generator = torch.Generator().manual_seed(seed)
    return CombinatorialBandit(num_samples, batch_size, feedback="scale-free", generator=generator)


def seed_of(seed: int, rank: int) -> int:
    """Return a seed for what must differ between ranks; that of rank 0 is `seed`."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> 1) if rank else seed


def learns(selection: Selection) -> bool:
    """Tell whether norms would change anything."""
    inner = selection.selection if isinstance(selection, ShardedSelection) else selection
    return not isinstance(inner, UniformSelection)


def _length(dataset: Any) -> int:
    length = len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None
    if length is None:
        kind = type(dataset).__name__
        raise TypeError(f"`dataset` must be map-style, with `__getitem__` and `__len__`, got dataset of type {kind}.")
    if length == 0:
        raise ValueError("`dataset` must not be empty, got len(dataset)=0.")
    return length


def optimizers_or_default(
    optimizer: Optimizer | Sequence[Optimizer] | str | None, model: nn.Module, lr: float | Tensor
) -> tuple[Optimizer, ...]:
    """Return the given optimizers, or the default one for all that is trainable; none if they are "external"."""
    if isinstance(optimizer, str):
        if optimizer != "external":
            rule = 'be a torch.optim.Optimizer, several, or "external"'
            raise TypeError(f"`optimizer` must {rule}, got optimizer={optimizer!r}.")
        return ()
    if optimizer is None:
        trainable: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # torch would take the slower loop on the CPU.
        fused, _ = _default_to_fused_or_foreach(trainable, differentiable=False, use_fused=True)
        return (AdamX(trainable, lr=lr, bias_correction=True, fused=fused or None),)
    optimizers: tuple[Any, ...] = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not optimizers or not all(isinstance(one, Optimizer) for one in optimizers):
        kinds = ", ".join(type(one).__name__ for one in optimizers) or "none"
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or several, got {kinds}.")
    if any(isinstance(one, torch.optim.LBFGS) for one in optimizers):
        raise TypeError("`optimizer` must step without a closure, got LBFGS.")
    return optimizers
