"""Warnings that point at the user's loop, however many functions of ours lie between."""

from __future__ import annotations

import sys
import warnings

# Torch calls into this package as well: hooks, and `__setstate__` of optimizers.
_PACKAGES = (__name__.partition(".")[0], "torch")


def warn_user(message: str) -> None:
    """Warn with the line that led into this package: the innermost one outside it and outside torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
