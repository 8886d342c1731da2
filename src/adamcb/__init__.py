"""Adaptive training batches for PyTorch."""

from importlib.metadata import version

__version__ = version("adamcb")
