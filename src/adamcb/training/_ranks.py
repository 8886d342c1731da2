"""Several processes: one draw shared out in equal parts, and its feedback gathered, so that all ranks learn the same.

The ranks are those of the default process group. Every rank makes the same whole draw, trains on its own rows of it,
and tells the others the scores it measured. The gather is one call a batch, of a size that the batch decides: for each
sample its index (int64), what was measured, the gradient that arrived at its loss, and its loss (float32 each, float64
if one of them is), and one number for the weighted loss.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from adamcb import _checks
from adamcb.data import whole_of
from adamcb.selection import Draw


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train together.

    Example:
        >>> Ranks.current()  # without a process group
        Ranks(rank=0, size=1)
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        _checks.integer("rank", self.rank, low=0, high=_checks.integer("size", self.size, low=1) - 1)

    @staticmethod
    def current() -> Ranks:
        """Return the place in the default process group; alone if there is none."""
        if dist.is_available() and dist.is_initialized():
            return Ranks(dist.get_rank(), dist.get_world_size())
        return Ranks()

    def check_batch_size(self, batch_size: int) -> None:
        """Raise unless the ranks can share a batch equally: averaging over unequal parts would weigh them wrongly."""
        if _checks.integer("batch_size", batch_size, low=1) % self.size:
            below = batch_size - batch_size % self.size
            near = f"{below} or {below + self.size}" if below else f"{self.size}"
            raise ValueError(
                f"`batch_size` must be a multiple of the number of ranks, {self.size}, which share each batch equally, "
                f"got batch_size={batch_size}. Take {near}."
            )


class Heard(NamedTuple):
    """What all ranks sent about a batch, still packed: each call on tensors costs more than the numbers.

    Attributes:
        bits: int[W, m], one row per rank: the indices of its k samples, what it measured of them, the gradients that
            arrived at their losses, their losses, and its weighted loss. Floats are written as integers of as many
            bits, so that nobody rounds them.
        kinds: The types of the three columns of floats. None: nothing was measured.
    """

    bits: Tensor
    kinds: tuple[torch.dtype | None, ...]

    @property
    def loss(self) -> Tensor:
        """float[], the weighted loss of the whole batch."""
        return self.bits[:, -1:].view(_floats(self.bits.dtype)).mean()

    def columns(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return the indices, and what was measured, what arrived and losses, in the order of the whole draw.

        The bits must be on the CPU.
        """
        wide, ranks = _floats(self.bits.dtype), len(self.bits)
        rows = self.bits.numpy()
        words = 8 // wide.itemsize  # of an index
        k = (rows.shape[1] - 1) // (words + 3)
        # Row j of a rank is row rank + j·W of the whole draw.
        indices = rows[:, : words * k].copy().view(np.int64).T.reshape(-1)
        floats = rows[:, words * k : -1].reshape(ranks, 3, k).transpose(1, 2, 0).reshape(3, -1)
        kinds = zip(floats, self.kinds, strict=True)
        told = (None if kind is None else torch.from_numpy(row).view(wide).to(kind) for row, kind in kinds)
        return torch.from_numpy(indices), tuple(told)


def _floats(bits: torch.dtype) -> torch.dtype:
    return torch.float64 if bits == torch.int64 else torch.float32


def gather_scores(
    ranks: Ranks, draw: Draw, measured: Tensor | None, arrived: Tensor, losses: Tensor, loss: Tensor
) -> Heard:
    """Send what this rank measured to all ranks, and return what all sent. One call; no device is waited for.

    Args:
        ranks: Who takes part.
        draw: The part of the draw that this rank trained on.
        measured: float[k/W], what the scores of its samples are made of. None: nothing is measured.
        arrived: float[k/W], the gradients that arrived at their losses.
        losses: float[k/W], their losses.
        loss: The sum of this rank's weighted losses.

    Raises:
        TypeError, ValueError: If one of these is something else.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> draw = UniformSelection(num_samples=8, batch_size=4).draw()
        >>> losses = torch.ones(4)
        >>> heard = gather_scores(Ranks(), draw, losses, losses / 4, losses, losses.mean())
        >>> heard.loss, heard.columns()[0].tolist() == draw.indices.tolist()
        (tensor(1.), True)
    """
    _checks.instance("ranks", ranks, Ranks, "the Ranks that take part")
    size = len(_checks.instance("draw", draw, Draw, "a Draw"))
    told = {"measured": losses if measured is None else measured, "arrived": arrived, "losses": losses}
    for name, column in told.items():
        _check_floats(name, column, (size,))
    _check_floats("loss", loss, ())
    kinds = (None if measured is None else measured.dtype, arrived.dtype, losses.dtype)
    bits = torch.int64 if torch.float64 in (*kinds, loss.dtype) else torch.int32
    sent = [column.detach().to(_floats(bits)).view(bits) for column in (*told.values(), loss.reshape(1))]
    own = torch.from_numpy(draw.indices.copy()).to(loss.device, non_blocking=True)
    return Heard(_all_gather(torch.cat([own.view(bits), *sent]), ranks.size), kinds)


def _check_floats(name: str, value: Any, shape: tuple[int, ...]) -> None:
    _checks.instance(name, value, Tensor, "a tensor")
    if value.is_meta or value.is_nested or value.layout != torch.strided:
        raise ValueError(f"`{name}` must be a plain tensor, got one that is on meta, nested or sparse.")
    if not value.is_floating_point() or value.shape != shape:
        got = f"{value.dtype} of shape {tuple(value.shape)}"
        raise ValueError(f"`{name}` must be a tensor of floats of shape {shape}, got {got}.")


def gather_numbers(ranks: Ranks, own: Sequence[float], device: torch.device) -> list[float]:
    """Return the numbers of all ranks, given as many of each: first the first of every rank, then the second."""
    sent = torch.tensor(own, dtype=torch.float64, device=device)
    return _all_gather(sent, ranks.size).T.reshape(-1).tolist()


def _all_gather(sent: Tensor, size: int) -> Tensor:
    """Return [W, ...], what each rank sent."""
    if size == 1:
        return sent.view(1, -1)
    received = sent.new_empty(size * len(sent))
    # Renamed in torch 2.13, where the older name warns.
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(received, sent)
    return received.view(size, -1)


def check_same_draw(draw: Draw, indices: Tensor) -> None:
    """Raise unless all ranks trained on parts of the same draw."""
    expected = torch.from_numpy(whole_of(draw).indices.copy())
    if not torch.equal(indices, expected):
        differing = int((indices != expected).sum())
        raise RuntimeError(
            f"All ranks must draw the same batches, got {differing} of {len(expected)} samples that differ. Give "
            "`selection` a generator that is seeded alike on every rank, and the same feedback."
        )


def check_same_gradients(optimizers: Sequence[Optimizer]) -> None:
    """Raise if the ranks hold different gradients: nobody averaged them, and the models would drift apart.

    One number a rank is compared. It costs as much as reading all gradients, so it is done once.
    """
    gradients = [
        parameter.grad
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not is_spread_tensor(parameter)
    ]
    if not gradients:
        return
    total = torch.stack([gradient.detach().double().abs().sum() for gradient in gradients]).sum().reshape(1)
    totals = _all_gather(total, dist.get_world_size()).flatten()
    if not torch.allclose(totals, totals[:1].expand_as(totals), rtol=1e-6, atol=0.0, equal_nan=True):
        raise RuntimeError(
            "Gradients must be averaged over the ranks before the optimizer steps, and they differ. Wrap the model in "
            "torch.nn.parallel.DistributedDataParallel, and call what it returns."
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, whose parameters have the same names in any number of ranks."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def is_spread_tensor(parameter: Tensor) -> bool:
    """Tell whether a parameter is spread over ranks (a DTensor)."""
    return hasattr(parameter, "device_mesh")


def is_spread_model(model: nn.Module) -> bool:
    """Tell whether `fully_shard` spread the model's parameters over the ranks."""
    return any(is_spread_tensor(parameter) for parameter in model.parameters())


def refuse_other_parallelism(model: nn.Module) -> None:
    """Raise if parameters are spread in a way in which samples cannot be measured, or ranks do not average gradients.

    `fully_shard` is fine: during the forward pass its parameters are whole, and it averages as
    DistributedDataParallel does.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported: nobody has used it then
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise NotImplementedError(
            "`model` must not be a FullyShardedDataParallel, whose flat parameters hide the layers. "
            "Use torch.distributed.fsdp.fully_shard, or DistributedDataParallel."
        )
    for path, parameter in model.named_parameters():
        placements = getattr(parameter, "placements", ())
        if sum(not placement.is_replicate() for placement in placements) > 1 or (placements and not _is_fsdp(model)):
            raise NotImplementedError(
                f"`model` must be spread over the ranks by `fully_shard` alone, got {path} with placements "
                f"{tuple(placements)}: with tensor parallelism several ranks would have to train on one sample."
            )


def _is_fsdp(model: nn.Module) -> bool:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())
