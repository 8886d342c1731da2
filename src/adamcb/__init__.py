"""Adaptive training batches for PyTorch: pick the samples that teach most, keep the gradient unbiased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

    __version__: str

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

# Imported when they are asked for: torch takes seconds, and the command line is in charge of signals before that.
_ROOMS = {
    "AdamCB": "training",
    "AdamX": "optim",
    "AdaptiveLoader": "training",
    "BanditLoader": "data",
    "CombinatorialBandit": "selection",
    "Draw": "selection",
    "PerSampleNorms": "gradnorm",
    "QueueBandit": "selection",
    "ReplacementBandit": "selection",
    "SelectedBatch": "data",
    "Selection": "selection",
    "UniformSelection": "selection",
    "WeightedSelection": "selection",
    "depround": "selection",
    "inverse_sqrt": "optim",
    "register_rule": "gradnorm",
}
# Parts of the package that are asked for by name: `adamcb.paper.adamcb(...)`.
_MODULES = ("integrations", "lab", "paper", "theory", *dict.fromkeys(_ROOMS.values()))


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("adamcb")
    if name in _MODULES:
        return import_module(f"adamcb.{name}")
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"adamcb.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
