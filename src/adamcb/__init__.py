"""Adaptive training batches for PyTorch: pick the samples that teach most, keep the gradient unbiased."""

from importlib.metadata import version

from adamcb.selection import CombinatorialBandit, Draw, ReplacementBandit, Selection, UniformSelection, depround

__version__ = version("adamcb")

__all__ = [
    "CombinatorialBandit",
    "Draw",
    "ReplacementBandit",
    "Selection",
    "UniformSelection",
    "depround",
]
