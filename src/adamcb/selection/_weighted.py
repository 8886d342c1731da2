"""What the two bandits share: a weight per sample, on a tree, changed by feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._feedback import Feedback
from adamcb.selection._random import Uniforms
from adamcb.selection._selection import Selection
from adamcb.selection._tree import SMALLEST, Tree, build_tree, gather, in_range, multiply


class WeightedSelection(Selection):
    """A selection whose probabilities come from one weight per sample, which stand in the tree in some order."""

    _feedback: Feedback
    _tree: Tree
    _uniforms: Uniforms
    _order: np.ndarray | None = None  # position in the tree → sample; None: as they come
    _position_of: np.ndarray | None = None  # sample → position in the tree

    def __init__(
        self, num_samples: int, batch_size: int, exploration: float, generator: torch.Generator | None
    ) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        self.exploration = _checks.real("exploration", exploration, low=0.0, high=1.0)

    @property
    def weights(self) -> np.ndarray:
        """float64[n], the weight of every sample, up to a common factor. Reading copies; assigning replaces all."""
        return self._by_sample(self._tree.leaves[: self.num_samples])

    @weights.setter
    def weights(self, weights: Any) -> None:
        self._set_weights(in_range(self._check_weights("weights", weights)))

    def _check_weights(self, name: str, weights: Any) -> np.ndarray:
        values = _checks.vector(name, weights, length=self.num_samples)
        needed = self.batch_size if self.exploration == 0.0 else 1
        positive = int(np.count_nonzero(values))
        if positive < needed:
            raise ValueError(f"`{name}` must hold at least {needed} numbers above 0, got {positive} of {len(values)}.")
        return values

    def _set_weights(self, weights: np.ndarray) -> None:
        self._tree = build_tree(weights, self._order)

    def _by_sample(self, values: np.ndarray) -> np.ndarray:
        """Bring values from the order of the tree into that of the samples."""
        if self._position_of is None:
            return values.copy()
        gather(values, self._position_of, result := np.empty(len(values)))
        return result

    def update(self, draw: Draw, scores: Any) -> None:
        """Change the weights of the samples of `draw` by the norms of their gradients. O(K log n).

        Args:
            draw: One of this selection's draws, the last or an earlier one. Its own probabilities are used; with
                scale-free feedback those of now, beside them.
            norms: K numbers ≥ 0, the norms of the unweighted per-sample gradients in the order of `draw.indices`.

        Raises:
            ValueError: If `norms` has the wrong length, holds NaN, infinite or negative numbers or one above
                `max_norm`, or if the draw is another selection's. Nothing is changed then.
        """
        values = self.check(draw, scores)
        positions = self._positions(draw)
        probs, least = self._own_probs(draw, positions)
        multiply(self._tree, positions, self._feedback.factors(probs, values, draw.probs), least)

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        values = super().check(draw, scores)
        self._feedback.check(values)
        return values

    def _own_probs(self, draw: Draw, positions: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the probabilities that the weights give the samples of a draw, and the least weight they may have."""
        return draw.probs, SMALLEST

    def _positions(self, draw: Draw) -> np.ndarray:
        return draw.indices if self._position_of is None else self._position_of[draw.indices]

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "exploration": self.exploration, **self._feedback.settings()}

    def _learned(self) -> dict[str, Any]:
        return {
            "weights": torch.from_numpy(self.weights),
            "feedback": self._feedback.state_dict(),
            "uniforms": torch.from_numpy(self._uniforms.rest.copy()),
        }

    def _check_state(self, state: Any) -> None:
        super()._check_state(state)
        self._check_weights("state['weights']", state["weights"])
        numbers = _checks.vector("state['uniforms']", state["uniforms"])
        if len(numbers) % self._uniforms.count:
            rule = f"hold a multiple of {self._uniforms.count} numbers"
            raise ValueError(f"`state['uniforms']` must {rule}, got len(state['uniforms'])={len(numbers)}.")
        learned = state["feedback"] if isinstance(state["feedback"], dict) else {}
        for name in self._feedback.state_dict():
            _checks.real(f"state['feedback']['{name}']", learned.get(name), low=0.0)

    def _restore(self, state: dict[str, Any]) -> None:
        self._feedback.load_state_dict(state["feedback"])
        self._uniforms.rest = _checks.vector("state['uniforms']", state["uniforms"]).copy()
        self._set_weights(_checks.vector("state['weights']", state["weights"]))
