"""What a draw was, and what a selection is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from adamcb import _checks

_ARRAYS = ("indices", "probs", "loss_weights")


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """A batch as it was drawn: which samples, and with what probabilities at that moment.

    It goes with its batch through loader and training until `Selection.update`, so that feedback which arrives late or
    out of order is applied with the probabilities of its own draw.

    Attributes:
        indices: int64[K]. Distinct, unless the selection draws with replacement.
        probs: float64[K]. The expected number of times each of these samples occurs in such a batch: for draws without
            replacement the inclusion probability, in (0, 1]; with replacement K times the selection probability.
        loss_weights: float64[K], 1/(n·probs). Σⱼ loss_weights[j]·x[indices[j]] has expectation mean(x): the
            Horvitz–Thompson estimate (Eq. (7) of the paper, without its surplus factor 1/K).
        origin: Names the selection that drew it.
    """

    indices: np.ndarray
    probs: np.ndarray
    loss_weights: np.ndarray
    origin: int = field(repr=False)

    def frozen(self) -> Draw:
        """Make the arrays read-only, and return the draw."""
        self.indices.flags.writeable = self.probs.flags.writeable = self.loss_weights.flags.writeable = False
        return self

    def __len__(self) -> int:
        return len(self.indices)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the draw is, as tensors and a number."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in _ARRAYS}
        return {"origin": self.origin, **arrays}

    @staticmethod
    def from_state(
        state: Any, *, num_samples: int | None = None, batch_size: int | None = None, name: str = "state"
    ) -> Draw:
        """Return the draw that `state` was made from.

        Raises:
            ValueError: If something is missing or does not fit; the message calls the state `name`.
        """
        keys = ("origin", *_ARRAYS)
        if not isinstance(state, dict) or not set(keys) <= set(state):
            raise ValueError(f"`{name}` must be a draw's state: a dict with the keys {', '.join(keys)}.")
        origin = _checks.integer(f"{name}['origin']", state["origin"], low=0)
        indices, probs, loss_weights = (
            _checks.vector(f"{name}['{key}']", state[key], length=batch_size) for key in _ARRAYS
        )
        if num_samples is not None and indices.max() >= num_samples:
            raise ValueError(f"`{name}['indices']` must be below num_samples={num_samples}, got {int(indices.max())}.")
        return Draw(indices.astype(np.int64), probs.copy(), loss_weights.copy(), origin).frozen()


def empty_draw(batch_size: int, origin: int) -> Draw:
    """Return a draw whose arrays are to be filled and frozen."""
    return Draw(np.empty(batch_size, dtype=np.int64), np.empty(batch_size), np.empty(batch_size), origin)


@runtime_checkable
class Selection(Protocol):
    """Chooses batches, and learns from what training reports of them."""

    num_samples: int
    batch_size: int

    def draw(self) -> Draw:
        """Choose the next batch."""
        ...

    def update(self, draw: Draw, norms: Any) -> None:
        """Learn from the norms (K floats ≥ 0) of the unweighted per-sample gradients of `draw`."""
        ...

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the expected number of occurrences of every sample in the next batch; it sums to K."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit, as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        ...
