"""Equations with fresh uniform points at every step, as many people draw them: the tasks of `benchmarks.tasks pinn`.

One epoch over as many points as a run of twelve epochs takes, so no point is met twice.
"""

from __future__ import annotations

from adamcb.lab.tasks.pinn import ALLEN_CAHN, BURGERS, pinn
from adamcb.lab.tasks.task import Task

STEPS, BATCH_SIZE = 2_340, 256


def burgers() -> Task:
    """Return Burgers' equation with points for one epoch."""
    return pinn(BURGERS, num_points=STEPS * BATCH_SIZE)


def allen_cahn() -> Task:
    """Return Allen–Cahn's equation with points for one epoch."""
    return pinn(ALLEN_CAHN, num_points=STEPS * BATCH_SIZE)
