"""Learning-rate schedules of the theorems."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from adamcb import _checks


def inverse_sqrt(optimizer: Optimizer) -> LRScheduler:
    """Return a scheduler that gives step t = 1, 2, … the learning rate α/√t, with α the rate of each group.

    The regret bounds assume this schedule. It counts steps, not epochs: call its `step` after every `optimizer.step`.

    Args:
        optimizer: Any torch optimizer; a learning rate that is a tensor is changed in place.

    Example:
        >>> import torch
        >>> from adamcb.optim import AdamX, inverse_sqrt
        >>> weight = torch.zeros(3, requires_grad=True)
        >>> optimizer = AdamX([weight], lr=0.1)
        >>> schedule = inverse_sqrt(optimizer)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     schedule.step()
        >>> schedule.get_last_lr()
        [0.05]
    """
    _checks.instance("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer")
    return LambdaLR(optimizer, _inverse_sqrt_factor)


def _inverse_sqrt_factor(steps_done: int) -> float:
    return (steps_done + 1) ** -0.5
