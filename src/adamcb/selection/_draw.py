"""What a draw was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from adamcb import _checks

_ARRAYS = ("indices", "probs", "loss_weights")


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """A batch as it was drawn: which samples, and with what probabilities at that moment.

    It travels with its batch through loader and training to `Selection.update`. Feedback that arrives late or out of
    order is therefore applied with the probabilities of its own draw.

    Attributes:
        indices: int64[k]. Distinct, unless the selection draws with replacement.
        probs: float64[k]. How often each of these samples is expected in such a batch: without replacement the
            inclusion probability, in (0, 1]; with replacement k times the selection probability.
        loss_weights: float64[k], 1/(n·probs). Σⱼ loss_weights[j]·x[indices[j]] has expectation mean(x): the
            Horvitz–Thompson estimate (Eq. (7) of the paper, without its surplus factor 1/K).
        origin: Names the selection that drew it.

    Example:
        >>> from adamcb import UniformSelection
        >>> draw = UniformSelection(100, 5).draw()
        >>> len(draw), draw.probs.tolist()
        (5, [0.05, 0.05, 0.05, 0.05, 0.05])
        >>> draw.loss_weights.tolist()  # 1/(100 · 0.05)
        [0.2, 0.2, 0.2, 0.2, 0.2]
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
        """Return copies of everything in the draw, as tensors and a number."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in _ARRAYS}
        return {"origin": self.origin, **arrays}

    @staticmethod
    def from_state(
        state: Any,
        *,
        num_samples: int | None = None,
        max_size: int | None = None,
        repeats: bool = True,
        name: str = "state",
    ) -> Draw:
        """Return the draw that `state` was made from.

        Args:
            state: What `state_dict` returned.
            num_samples: Refuse indices at or above this.
            max_size: Refuse draws of more samples than this.
            repeats: False: refuse samples that occur twice, and probabilities above 1.
            name: What error messages call the state.

        Raises:
            ValueError: If something is missing or does not fit.
        """
        keys = ("origin", *_ARRAYS)
        if not isinstance(state, dict) or not set(keys) <= set(state):
            raise ValueError(f"`{name}` must be a draw's state: a dict with the keys {', '.join(keys)}.")
        origin = _checks.integer(f"{name}['origin']", state["origin"], low=0)
        indices = _checks.indices(f"{name}['indices']", state["indices"], below=num_samples, distinct=not repeats)
        size = _checks.integer(f"len({name}['indices'])", len(indices), low=1, high=max_size)
        probs, loss_weights = (_checks.vector(f"{name}['{key}']", state[key], length=size) for key in _ARRAYS[1:])
        check_probs(f"{name}['probs']", probs, repeats=repeats)
        return Draw(indices.copy(), probs.copy(), loss_weights.copy(), origin).frozen()


def check_probs(name: str, probs: np.ndarray, *, repeats: bool) -> None:
    """Raise unless `probs` lie in (0, 1]; where samples may be repeated, they are only above 0."""
    highest = np.inf if repeats else 1.0 + 1e-9  # they are rounded
    if not (probs.min() > 0.0 and probs.max() <= highest):
        bad = int(np.flatnonzero(~((probs > 0.0) & (probs <= highest)))[0])
        rule = "be above 0" if repeats else "lie in (0, 1]"
        raise ValueError(f"`{name}` must {rule}, got {name}[{bad}]={probs[bad]}.")


def empty_draw(size: int, origin: int) -> Draw:
    """Return a draw whose arrays the caller fills and freezes."""
    return Draw(np.empty(size, dtype=np.int64), np.empty(size), np.empty(size), origin)


def uniform_draw(indices: np.ndarray, num_samples: int, origin: int) -> Draw:
    """Return the draw of these k samples out of n, each with probability k/n."""
    draw = empty_draw(len(indices), origin)
    draw.indices[:] = indices
    draw.probs[:], draw.loss_weights[:] = len(indices) / num_samples, 1.0 / len(indices)
    return draw.frozen()
