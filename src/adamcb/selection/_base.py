"""What all selections share: sizes, a generator of their own, draws that know where they come from, saved state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._random import new_seed, own_generator


class BaseSelection:
    """Sizes, generator, checks and state; a subclass adds `draw`, `update` and what it learned."""

    def __init__(self, num_samples: int, batch_size: int, generator: torch.Generator | None) -> None:
        self.num_samples = _checks.integer("num_samples", num_samples, low=1)
        self.batch_size = _checks.integer("batch_size", batch_size, low=1)
        if self.batch_size > self.num_samples:
            raise ValueError(f"`batch_size` must be at most num_samples={num_samples}, got batch_size={batch_size}.")
        self.generator = own_generator(generator)
        # Names this selection's draws. Twins built from one seed share it: their draws are the same.
        self._origin = new_seed(self.generator)

    def _check_feedback(self, draw: Draw, norms: Any) -> np.ndarray:
        """Return `norms` as float64[K], or raise."""
        if not isinstance(draw, Draw):
            raise TypeError(f"`draw` must be a Draw, got draw of type {type(draw).__name__}.")
        if draw.origin != self._origin:
            raise ValueError(f"`draw` must be a draw of this selection, got one of another: draw.origin={draw.origin}.")
        if isinstance(norms, np.ndarray) and norms.shape == (self.batch_size,) and norms.dtype == np.float64:
            return norms  # its values are checked where they are used
        return _checks.vector("norms", norms, length=self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit, as tensors and plain values."""
        return {
            "settings": self._settings(),
            "origin": self._origin,
            "generator": self.generator.get_state(),
            **self._learned(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, saved by a selection of the same settings.

        Raises:
            ValueError: If a setting differs or something is missing. Nothing is changed then.
        """
        self._check_state(state)
        self._restore(state)
        self._origin = state["origin"]
        self.generator.set_state(state["generator"])

    def _check_state(self, state: Any) -> None:
        """Raise unless `state` can be taken over. A subclass adds checks of what it learned."""
        keys = ("settings", "origin", "generator", *self._learned_keys)
        if not isinstance(state, dict) or not set(keys) <= set(state):
            got = f"the keys {', '.join(map(str, state))}" if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"`state` must be a dict with the keys {', '.join(keys)}, got {got}.")
        settings = state["settings"] if isinstance(state["settings"], dict) else {}
        for name, value in self._settings().items():
            saved = settings.get(name)
            if saved != value:
                raise ValueError(f"`state` must be saved with {name}={value!r}, got {name}={saved!r}.")
        for name in ("origin", "order_seed", "drawn"):
            if name in state:
                _checks.integer(f"state['{name}']", state[name], low=0)
        try:
            torch.Generator().set_state(state["generator"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"`state['generator']` must be the state of a torch.Generator: {error}") from error

    _learned_keys: tuple[str, ...] = ()

    def _settings(self) -> dict[str, Any]:
        """Return what a saved state must agree with."""
        return {"kind": type(self).__name__, "num_samples": self.num_samples, "batch_size": self.batch_size}

    def _learned(self) -> dict[str, Any]:
        """Return what changes from draw to draw."""
        raise NotImplementedError

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over what `_learned` returned; it is checked already."""
        raise NotImplementedError
