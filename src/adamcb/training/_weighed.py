"""Batches between `weigh` and `update`, and what their weights did to the norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adamcb.selection import Draw


class Weighed(NamedTuple):
    """A batch between `weigh` and `update`.

    Attributes:
        draw: The draw of these losses; with several ranks, this rank's part.
        factors: float[K], what the losses were multiplied by.
        losses: float[K], where they could not be checked without waiting for the device, or for other ranks.
    """

    draw: Draw
    factors: Tensor
    losses: Tensor | None = None


def unweighted(norms: Tensor, weighed: Sequence[Weighed]) -> Tensor:
    """Return the norms of the gradients of the losses, from those of the weighted losses."""
    factors = torch.cat([batch.factors for batch in weighed]) if len(weighed) > 1 else weighed[0].factors
    if norms.shape != factors.shape:
        raise RuntimeError(
            "`update` must follow one forward and one `backward` of the model for every batch that was weighed, got "
            f"{len(factors)} weighed samples and gradients of {len(norms)}."
        )
    return norms / (factors if factors.device == norms.device else factors.to(norms.device))


def unchecked_losses(weighed: Sequence[Weighed]) -> Tensor | None:
    """Return the losses that `weigh` did not check, None if there are none."""
    losses = [batch.losses for batch in weighed if batch.losses is not None]
    return torch.cat(losses) if losses else None


def scale_of(scaler: torch.amp.GradScaler, device: torch.device) -> Tensor:
    """Return the scale as a tensor on the device: `get_scale` would wait for it."""
    return scaler.scale(torch.ones((), device=device))
