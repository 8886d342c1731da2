"""What a user gives to `AdaptiveLoader` and `AdamCB`: checked, and completed by defaults."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb import _checks
from adamcb._seeds import derived_seed
from adamcb._torch_compat import can_fuse
from adamcb.optim import AdamX
from adamcb.selection import Draw, QueueBandit, Selection, Strata, Stratum, stratum_size
from adamcb.training._feedback_queue import MOST_WAITING
from adamcb.training._ranks import Ranks, gather_numbers

# Options of a BanditLoader, or of an older version, that have no place here, and what to do instead.
_NOT_OURS = {
    "norms": "it is called `scores` now",
    "rank": "the process group says which rank this is",
    "num_ranks": "the process group says how many ranks there are",
}


def check_model(model: Any) -> None:
    """Raise unless `model` is a module."""
    if not isinstance(model, nn.Module):
        hint = " Pass the model, not its parameters." if isinstance(model, Iterable) else ""
        raise TypeError(f"`model` must be a torch.nn.Module, got model of type {type(model).__name__}.{hint}")


def check_loader_options(options: dict[str, Any]) -> None:
    """Raise for options that cannot be obeyed; `BanditLoader` refuses those of a DataLoader."""
    for name, advice in _NOT_OURS.items():
        if name in options:
            raise TypeError(f"`{name}` must not be given, got {_checks.shown(name, options[name])}: {advice}.")


def checked_device(device: Any) -> torch.device | None:
    """Return where batches are moved, or raise unless numbers can be there."""
    place = None if device is None else _checks.device("device", device)
    if place is not None and place.type == "meta":
        raise ValueError(f"`device` must hold numbers, got {_checks.shown('device', device)}.")
    return place


def checked_delay(delay: Any) -> int | None:
    """Return the feedback delay, or raise unless so many scores can wait in memory."""
    return None if delay is None else _checks.integer("feedback_delay", delay, low=0, high=MOST_WAITING)


def refuse_copies(loader: Any, protocol: Any) -> Any:
    """Raise, when a loader is copied or pickled."""
    raise TypeError(
        f"The {type(loader).__name__} must not be copied or pickled: it is attached to its model. Copy the model, make "
        "a new one for it, and give it the `state_dict()` of this one."
    )


def check_observers(observers: Any) -> tuple[Any, ...]:
    """Return the observers, or raise unless each can be told of draws and scores."""
    told = _checks.sequence("observers", observers, "be a sequence of observers")
    for one in told:
        if not all(callable(getattr(one, name, None)) for name in ("note_draw", "note_scores")):
            kind = type(one).__name__
            raise TypeError(f"`observers` must have `note_draw` and `note_scores`, got an observer of type {kind}.")
    return told


def refuse_again(draw: Draw, weighed: Iterable[Draw]) -> None:
    """Raise if `draw` is one of those that were weighed."""
    if any(draw is one for one in weighed):
        raise RuntimeError(
            "`draw` must be weighed once, and it was: its samples would be learned from twice. To weigh other losses "
            "of the same batch, multiply them by `draw.loss_weights`."
        )


def check_losses(losses: Any, size: int) -> None:
    """Raise unless `losses` is one loss for each of `size` samples, with a gradient."""
    if not isinstance(losses, Tensor):
        raise TypeError(f"`losses` must be a tensor, got losses of type {type(losses).__name__}.")
    if not losses.is_floating_point():
        raise TypeError(f"`losses` must be a tensor of floats, got losses of {losses.dtype}.")
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


def selection_or_default(
    selection: Selection | None, dataset: Any, batch_size: int, min_batch_size: int | None, seed: int, ranks: Ranks
) -> Selection:
    """Return `selection`, or the default one for this dataset."""
    ranks.check_batch_size(batch_size)
    seed, min_batch_size = _checks.seed("seed", seed), _least(min_batch_size, batch_size)
    if selection is None:
        # Where all batches have K samples it plays no part, and a state must not depend on the number of ranks.
        multiple = 1 if min_batch_size is None or ranks.size == 1 else shares_of(batch_size, ranks.size)
        return _default(_checks.map_style("dataset", dataset), batch_size, min_batch_size, seed, size_multiple=multiple)
    _check_selection(selection, min_batch_size)
    if selection.batch_size != batch_size:
        raise ValueError(f"`batch_size` must be the selection's, {selection.batch_size}, got batch_size={batch_size}.")
    return selection


def strata_or_default(
    selection: Selection | None,
    dataset: Any,
    batch_size: int,
    min_batch_size: int | None,
    seed: int,
    ranks: Ranks,
    *,
    sharded: bool | int,
    model: nn.Module,
) -> Strata:
    """Return the strata of this rank: around `selection`, which is one for all its samples, or around default ones."""
    seed, min_batch_size = _checks.seed("seed", seed), _least(min_batch_size, batch_size)
    num_samples, num_strata = _checks.map_style("dataset", dataset), sharded
    if isinstance(sharded, bool):
        num_strata = ranks.size if selection is not None else shares_of(batch_size, ranks.size)
        if num_strata <= ranks.size:
            ranks.check_batch_size(batch_size)
    _check_strata(num_strata, batch_size, ranks.size, given=selection is not None)
    own_batch, held = batch_size // num_strata, []
    for stratum in range(ranks.rank, num_strata, ranks.size):
        size, chosen = stratum_size(num_samples, stratum, num_strata), selection
        if chosen is None:
            own_seed = derived_seed(seed, stratum) if stratum else seed
            own_min = None if min_batch_size is None else max(min_batch_size // num_strata, 1)
            chosen = _default(size, own_batch, own_min, own_seed)
        _check_selection(chosen, None)
        if (chosen.num_samples, chosen.batch_size) != (size, own_batch):
            rule = f"draw {own_batch} of the {size} samples of rank {ranks.rank}, because sharded=True"
            got = f"selection.num_samples={chosen.num_samples} and selection.batch_size={chosen.batch_size}"
            raise ValueError(f"`selection` must {rule}, got {got}.")
        held.append(Stratum(chosen, num_samples, number=stratum, num_strata=num_strata))

    def agree(own: list[float]) -> list[float]:
        missing = -(-num_strata // ranks.size) - len(own)  # all ranks must send equally many
        return gather_numbers(ranks, [*own, *[math.nan] * missing], device_of(model))[:num_strata]

    return Strata(held, agree=None if ranks.size == 1 else agree)


def checked_sharded(sharded: Any) -> bool | int:
    """Return whether weights are sharded, or into how many strata."""
    if isinstance(sharded, (bool, np.bool_)):
        return bool(sharded)
    if not isinstance(sharded, numbers.Integral):
        raise _checks.wrong_type("sharded", "be True, False or the number of strata", sharded)
    return _checks.integer("sharded", sharded, low=1)


def shares_of(batch_size: int, num_ranks: int) -> int:
    """Return into how many equal shares batches are cut, so that other numbers of ranks can go on with them.

    It is a multiple of 12 where 12 divides K, and of gcd(K, 24) where it does not; and of W, where that divides K.

    Example:
        >>> shares_of(96, 4), shares_of(128, 4), shares_of(128, 3)
        (12, 8, 8)
    """
    shares = 12 if batch_size % 12 == 0 else math.gcd(batch_size, 24)
    return shares if batch_size % num_ranks else math.lcm(num_ranks, shares)


def _check_strata(num_strata: int, batch_size: int, num_ranks: int, *, given: bool) -> None:
    """Raise unless every rank can hold a stratum, and the strata share each batch equally."""
    if num_strata < num_ranks:
        raise ValueError(
            f"`sharded` must be at least the number of ranks, {num_ranks}, each of which holds a stratum or more, got "
            f"sharded={num_strata}."
        )
    if batch_size % num_strata:
        raise ValueError(
            f"`batch_size` must be a multiple of the number of strata, {num_strata}, which share each batch equally, "
            f"got batch_size={batch_size}."
        )
    if given and num_strata != num_ranks:
        raise ValueError(
            f"`sharded` must be True where `selection` is given, which is one for all samples of this rank, got "
            f"sharded={num_strata}."
        )


def _least(min_batch_size: Any, batch_size: int) -> int | None:
    if min_batch_size is None:
        return None
    return _checks.integer("min_batch_size", min_batch_size, low=1, high=batch_size)


def _check_selection(selection: Any, min_batch_size: int | None) -> None:
    if not isinstance(selection, Selection):
        raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
    if min_batch_size is not None and min_batch_size != selection.min_batch_size:
        rule = f"be the selection's, {selection.min_batch_size}, or None where `selection` is given"
        raise ValueError(f"`min_batch_size` must {rule}, got min_batch_size={min_batch_size}.")


def _default(
    num_samples: int, batch_size: int, min_batch_size: int | None, seed: int, *, size_multiple: int = 1
) -> Selection:
    sizes = {"min_batch_size": min_batch_size, "size_multiple": size_multiple}
    return QueueBandit(num_samples, batch_size, **sizes, generator=torch.Generator().manual_seed(seed))


def optimizers_or_default(
    optimizer: Optimizer | Sequence[Optimizer] | None, model: nn.Module, lr: float | Tensor | None, **settings: Any
) -> tuple[Optimizer, ...]:
    """Return the given optimizers, or the default one with these settings for all that is trainable."""
    if optimizer is None:
        trainable: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trainable:
            frozen = sum(1 for _ in model.parameters())
            raise ValueError(
                f"`model` must have a trainable parameter, got one with {frozen} frozen ones and no other."
            )
        # torch would take the slower loop on the CPU.
        given = {name: value for name, value in settings.items() if value is not None}
        return (AdamX(trainable, lr=1e-3 if lr is None else lr, fused=can_fuse(trainable) or None, **given),)
    for name, value in {"lr": lr, **settings}.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be set in `optimizer` where that is given, got {_checks.shown(name, value)} beside it."
            )
    if isinstance(optimizer, type) or not isinstance(optimizer, (Optimizer, Iterable)):
        hint = ": build it first, optimizer=AdamW(model.parameters())" if isinstance(optimizer, type) else ""
        got = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or several, got {got}{hint}.")
    several = "be a torch.optim.Optimizer or several"
    single = isinstance(optimizer, Optimizer)
    optimizers: tuple[Any, ...] = (optimizer,) if single else _checks.sequence("optimizer", optimizer, several)
    if not optimizers or not all(isinstance(one, Optimizer) for one in optimizers):
        kinds = ", ".join(type(one).__name__ for one in optimizers) or "none"
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or several, got {kinds}.")
    if len({id(one) for one in optimizers}) < len(optimizers):
        got = ", ".join(type(one).__name__ for one in optimizers)
        raise ValueError(f"`optimizer` must name each optimizer once, or it would step twice, got one twice in {got}.")
    if any(isinstance(one, torch.optim.LBFGS) for one in optimizers):
        raise TypeError("`optimizer` must step without a closure, got LBFGS.")
    return optimizers
