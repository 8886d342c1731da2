"""Compiled loops: how they are compiled and cached, how the user is told of it, and a clock that leaves it out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

logger = logging.getLogger(__name__)

_ONCE = "Compiling the loops of adamcb for this machine: some seconds, once. Compiled code is stored."
_AGAIN = (
    "Compiling the loops of adamcb: some seconds in every process, because compiled code cannot be stored here. "
    "Set the environment variable NUMBA_CACHE_DIR to a folder that can be written."
)
# What lets a sum be split over the lanes of a vector. NaN and infinity keep their meaning.
_ANY_ORDER = {"reassoc", "contract", "nsz"}


def jit(function: Callable[..., Any], *, any_order: bool = False) -> Any:
    """Compile `function` at its first call, and cache the compiled code on disk if possible.

    Args:
        function: The function.
        any_order: Whether its sums may be added up in any order, as they are in torch.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": _ANY_ORDER if any_order else False}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        _teller.message = _AGAIN
        return numba.njit(function, **options)


def clock() -> float:
    """Return seconds as `time.perf_counter` does, less those in which numba compiled, or loaded compiled code."""
    return time.perf_counter() - _stopwatch.seconds


class _Teller(event.Listener):
    """Logs in words, once a process, that loops of this package are being compiled.

    As a warning, because Python shows warnings by default: a user who waits wants to know why.
    """

    message, told = _ONCE, False

    def on_start(self, event: Any) -> None:
        if not self.told and event.data["dispatcher"].py_func.__module__.startswith("adamcb."):
            self.told = True
            logger.warning(self.message)

    def on_end(self, event: Any) -> None:
        """Do nothing."""


class _Stopwatch(event.Listener):
    """Adds up the seconds that numba's compiler is held. It is held again for every loop that a loop calls."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._start = 0.0, 0, 0.0

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._start = time.perf_counter()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._start


_teller, _stopwatch = _Teller(), _Stopwatch()
event.register("numba:compile", _teller)
event.register("numba:compiler_lock", _stopwatch)
