"""Adaptive training batches for PyTorch: pick the samples that teach most, keep the gradient unbiased."""

from importlib.metadata import version

from adamcb.data import BanditLoader, SelectedBatch
from adamcb.gradnorm import PerSampleNorms
from adamcb.optim import AdamX, inverse_sqrt
from adamcb.selection import CombinatorialBandit, Draw, ReplacementBandit, Selection, UniformSelection, depround
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
    "ReplacementBandit",
    "SelectedBatch",
    "Selection",
    "UniformSelection",
    "depround",
    "inverse_sqrt",
]
