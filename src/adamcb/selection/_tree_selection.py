"""What selections with one weight per sample share: the weights on a tree, and the shuffled order of its leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._capping import probs_at
from adamcb.selection._depround import draw_ordered
from adamcb.selection._draw import Draw, empty_draw
from adamcb.selection._random import Uniforms, inverse, new_seed, permutation
from adamcb.selection._selection import Selection
from adamcb.selection._shuffle import Shuffle
from adamcb.selection._tree import Tree, build_tree, gather, in_range, tree_over

_NO_LEAVES = np.empty(0)


class TreeSelection(Selection):
    """A selection whose probabilities follow from one weight per sample. The weights are the leaves of a tree.

    Args:
        num_samples: n.
        batch_size: K.
        min_batch_size: The smallest batch; None: K.
        numbers: How many random numbers a draw takes for each sample.
        generator: Where all random numbers come from.
    """

    per_sample = ("weights",)
    _leaves: np.ndarray  # of the tree
    _built: Tree | None  # the tree; None: inner nodes are built on demand
    _order: np.ndarray | Shuffle | None = None  # position in the tree → sample; None: as they come
    _position_of: np.ndarray | Shuffle | None = None  # sample → position in the tree

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        numbers: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(num_samples, batch_size, min_batch_size=min_batch_size, generator=generator)
        self._uniforms = Uniforms(numbers * self.batch_size, self.generator)

    @property
    def _tree(self) -> Tree:
        if self._built is None:
            self._built = tree_over(self._leaves)
        return self._built

    @_tree.setter
    def _tree(self, tree: Tree) -> None:
        self._leaves, self._built = tree.leaves, tree

    @property
    def weights(self) -> np.ndarray:
        """float64[n], the weight of every sample, up to a common factor. Assigning replaces all.

        Reading gives a copy that cannot be written to: writing to it would change no weight.
        """
        copy = self._copied_weights()
        copy.setflags(write=False)
        return copy

    @weights.setter
    def weights(self, weights: Any) -> None:
        self._assign(self._check_weights("weights", weights))

    @property
    def _min_positive(self) -> int:
        """How many weights must be above 0, so that a batch can be drawn."""
        return 1

    def _check_weights(self, name: str, weights: Any) -> np.ndarray:
        values = _checks.vector(name, weights, length=self.num_samples)
        positive = int(np.count_nonzero(values))
        if positive < self._min_positive:
            rule = f"hold at least {self._min_positive} number{'s' if self._min_positive > 1 else ''} above 0"
            raise ValueError(f"`{name}` must {rule}, got {positive} of {len(values)}.")
        return values

    def _assign(self, weights: np.ndarray) -> None:
        self._set_weights(in_range(weights))

    def _set_weights(self, weights: np.ndarray) -> None:
        self._tree = build_tree(weights, self._order)

    def _copied_weights(self) -> np.ndarray:
        return self._by_sample(self._leaves[: self.num_samples])

    def _by_sample(self, values: np.ndarray) -> np.ndarray:
        """Bring values from the order of the tree into that of the samples."""
        if self._position_of is None:
            return values.copy()
        gather(values, self._position_of, result := np.empty(len(values)))
        return result

    def _positions(self, draw: Draw) -> np.ndarray:
        return draw.indices if self._position_of is None else self._position_of[draw.indices]

    def _vectors(self) -> dict[str, Any]:
        return {"weights": torch.from_numpy(self._copied_weights())}

    def learned(self) -> dict[str, Any]:
        return {"uniforms": torch.from_numpy(self._uniforms.rest.copy())}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        self._check_weights("state['weights']", state["weights"])
        numbers = _checks.vector("state['uniforms']", state["uniforms"])
        if len(numbers) and not numbers.max() < 1.0:
            raise ValueError(f"`state['uniforms']` must lie in [0, 1), got {numbers.max()}.")
        if len(numbers) % self._uniforms.count:
            rule = f"hold a multiple of {self._uniforms.count} numbers"
            raise ValueError(f"`state['uniforms']` must {rule}, got len(state['uniforms'])={len(numbers)}.")

    def restore(self, state: dict[str, Any]) -> None:
        self._restore_uniforms(state)
        self._set_weights(_checks.vector("state['weights']", state["weights"]))

    def _restore_uniforms(self, state: dict[str, Any]) -> None:
        self._uniforms.rest = _checks.vector("state['uniforms']", state["uniforms"]).copy()


class DistinctSelection(TreeSelection):
    """A selection of K distinct samples, drawn by DepRound along a shuffled order.

    Which samples can meet in a batch depends on the order, so it is reshuffled every epoch of floor(n/K) draws.
    """

    min_prob: float = 0.0

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        weights: Any = None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(num_samples, batch_size, min_batch_size=min_batch_size, numbers=2, generator=generator)
        equal = np.broadcast_to(1.0, self.num_samples)
        first = equal if weights is None else in_range(self._check_weights("weights", weights))
        self._start_epoch(new_seed(self.generator), first)

    def _start_epoch(self, seed: int, weights: np.ndarray) -> None:
        """Reshuffle the order, and build the tree of `weights` in it."""
        self._leaves, self._built = _NO_LEAVES, None  # the old tree and the new one are never in memory together
        self._order = self._position_of = None
        try:
            self._order = permutation(self.num_samples, seed)
            self._position_of = inverse(self._order)
            self._set_weights(weights)
        except BaseException:  # interrupted, or out of memory: keep what was learned; the next draw tries again
            self._order = self._position_of = None
            self._set_weights(weights)
            self._drawn = self.draws_per_epoch
            raise
        self._order_seed, self._drawn = seed, 0

    def _start_epoch_in_place(self, seed: int, by_sample: np.ndarray | None = None) -> None:
        """Reshuffle an order that is computed, of the weights that are there or of others, without a second copy."""
        assert isinstance(self._order, Shuffle)
        self._built = None
        weights = self._leaves[: self.num_samples]
        self._order.move(seed, weights) if by_sample is None else self._order.move(seed, weights, by_sample)
        self._order_seed, self._drawn = seed, 0

    def _reshuffle_if_done(self) -> None:
        if self._drawn < self.draws_per_epoch:
            return
        if isinstance(self._order, Shuffle):
            self._start_epoch_in_place(new_seed(self.generator))
        else:
            self._start_epoch(new_seed(self.generator), self._copied_weights())

    def _in_order(self, positions: np.ndarray | slice) -> np.ndarray:
        """Return the samples at these positions of the epoch's order."""
        assert self._order is not None
        return self._order[positions]

    def _draw_by_weight(self, size: int) -> Draw:
        """Return a draw of `size` samples by DepRound in the epoch's order. It is not frozen yet."""
        draw = empty_draw(size, self._origin)
        arrays = (draw.indices, draw.probs, draw.loss_weights)
        draw_ordered(self._tree, self.num_samples, size, self._min_prob_of(size), self._uniforms.take(), *arrays)
        draw.indices[:] = self._in_order(draw.indices)
        return draw

    def _min_prob_of(self, size: int) -> float:
        """Return the smallest probability of a sample in a batch of `size`."""
        return self.min_prob * (size / self.batch_size)

    def _probs_by_weight(self, positions: np.ndarray, size: int) -> tuple[np.ndarray, float]:
        """Return the inclusion probabilities in a batch of `size`, and how fast they rise with the weights."""
        sizes = (self.num_samples, size, self._min_prob_of(size))
        slope = probs_at(self._tree, *sizes, positions, probs := np.empty(len(positions)))
        return probs, slope

    def _all_probs_by_weight(self, size: int) -> np.ndarray:
        """Return float64[n], the inclusion probabilities of all samples in a batch of `size`."""
        everywhere = np.arange(self.num_samples) if self._position_of is None else self._position_of[:]
        return self._probs_by_weight(everywhere, size)[0]

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the probability of every sample to be in the next batch; it sums to K. O(n)."""
        return self._all_probs_by_weight(self.batch_size)

    def _vectors(self) -> dict[str, Any]:
        if isinstance(self._order, Shuffle):
            self._built = None  # makes room for the copy of the weights; the next draw builds it again
        return super()._vectors()

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "order_seed": self._order_seed, "drawn": self._drawn}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        _checks.seed("state['order_seed']", state["order_seed"])
        _checks.integer("state['drawn']", state["drawn"], low=0, high=self.draws_per_epoch)

    def restore(self, state: dict[str, Any]) -> None:
        self._restore_uniforms(state)
        weights = _checks.vector("state['weights']", state["weights"])
        if isinstance(self._order, Shuffle):
            self._start_epoch_in_place(state["order_seed"], weights)
        else:
            self._start_epoch(state["order_seed"], weights)
        self._drawn = state["drawn"]
