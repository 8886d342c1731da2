"""Adaptive training batches for PyTorch: pick the samples that teach most, keep the gradient unbiased."""

from importlib.metadata import version

from adamcb.data import BanditLoader, SelectedBatch
from adamcb.gradnorm import PerSampleNorms, register_rule
from adamcb.optim import AdamX, inverse_sqrt
from adamcb.selection import (
    CombinatorialBandit,
    Draw,
    QueueBandit,
    ReplacementBandit,
    Selection,
    UniformSelection,
    WeightedSelection,
    depround,
)
from adamcb.training import AdamCB, AdaptiveLoader

__version__ = version("adamcb")

__all__ = [
    "AdamCB",
    "AdamX",
    "AdaptiveLoader",
    "BanditLoader",
    "CombinatorialBandit",
    "Draw",
    "PerSampleNorms",
    "QueueBandit",
    "ReplacementBandit",
    "SelectedBatch",
    "Selection",
    "UniformSelection",
    "WeightedSelection",
    "depround",
    "inverse_sqrt",
    "register_rule",
]
