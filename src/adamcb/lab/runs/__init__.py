"""Runs: one training from start to end, the processes that do many of them, and what is watched meanwhile."""

from adamcb.lab.runs.run import Progress, Run

__all__ = ["Progress", "Run"]
