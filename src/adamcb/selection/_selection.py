"""What a selection is: the base class of everything that chooses batches."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb._jit import jit
from adamcb._seeds import derived_seed
from adamcb.selection._draw import Draw, check_probs
from adamcb.selection._random import new_seed, own_generator


class Selection:
    """Chooses batches, and learns from what training reports about them.

    Loaders and trainers rely on what is defined here and on nothing else. A selection of your own implements `draw`;
    everything else has a default. Selections that learn also override `update`, and the four hooks for what is saved:
    `settings`, `learned`, `check_state` and `restore`.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        min_batch_size: The smallest batch that `draw` returns. None: every batch has K samples.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Attributes:
        learns: Whether `update` changes anything. If not, nobody needs to measure scores.
        repeats: Whether a draw may hold a sample more than once.
        per_sample: The entries of `state_dict()` that are tensors with one row per sample. They are what a checkpoint
            spreads over ranks.

    Example:
        >>> class InOrder(Selection):
        ...     learns = False
        ...
        ...     def __init__(self, num_samples, batch_size, *, generator=None):
        ...         super().__init__(num_samples, batch_size, generator=generator)
        ...         self.position = 0
        ...
        ...     def draw(self):
        ...         indices = (self.position + np.arange(self.batch_size)) % self.num_samples
        ...         self.position = (self.position + self.batch_size) % self.num_samples
        ...         return self.make_draw(indices, self.batch_size / self.num_samples)
        ...
        ...     def learned(self):
        ...         return {"position": self.position}
        ...
        ...     def restore(self, state):
        ...         self.position = state["position"]
        >>> selection = InOrder(10, 4)
        >>> [selection.draw().indices.tolist() for _ in range(3)]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    """

    learns: bool = True
    repeats: bool = False
    per_sample: tuple[str, ...] = ()

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.num_samples = _checks.num_samples(num_samples)
        self.batch_size = _checks.integer("batch_size", batch_size, low=1)
        if self.batch_size > self.num_samples:
            got = _checks.shown("batch_size", self.batch_size)
            raise ValueError(f"`batch_size` must be at most num_samples={self.num_samples}, got {got}.")
        self.min_batch_size = self.batch_size
        if min_batch_size is not None:
            self.min_batch_size = _checks.integer("min_batch_size", min_batch_size, low=1, high=self.batch_size)
        self.generator = own_generator(generator)
        # Names this selection's draws. Twins built from one seed share it, because their draws are the same.
        kind = zlib.crc32(type(self).__name__.encode())
        self._origin = derived_seed(new_seed(self.generator), self.num_samples, self.batch_size, kind)

    @property
    def draws_per_epoch(self) -> int:
        """How many draws make an epoch: floor(n/K)."""
        return self.num_samples // self.batch_size

    @property
    def listens(self) -> bool:
        """Whether the scores of the batch that was drawn last are worth measuring. `update` may come anyway, or not."""
        return self.learns

    @property
    def needed_size(self) -> float:
        """How many chosen samples make the next batch as noisy as K uniform ones; K if every batch has K samples."""
        return float(self.batch_size)

    def plan_size(self, needed: float) -> None:
        """Let the next batch be as large as if `needed_size` were this. The default does nothing."""

    def draw(self) -> Draw:
        """Choose the next batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement `draw`.")

    def update(self, draw: Draw, scores: Any) -> None:
        """Learn how large the gradients of the samples in `draw` were. The default checks and learns nothing.

        Args:
            draw: One of this selection's draws, the last or an earlier one.
            scores: k numbers ≥ 0 in the order of `draw.indices`; by default the norms of the unweighted per-sample
                gradients.

        Raises:
            ValueError: If `scores` has the wrong length or holds NaN, infinite or negative numbers, or if another
                selection made the draw. Nothing is changed then.
        """
        self.check(draw, scores)

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        self.check_draw(draw)
        if type(scores) is np.ndarray and scores.dtype == np.float64 and scores.shape == (len(draw),):
            values = np.ascontiguousarray(scores)
            if largest(values) >= 0.0:  # the common case, in a tenth of the time
                return values
        return _checks.vector("scores", scores, length=len(draw))

    def check_draw(self, draw: Draw) -> Draw:
        """Return `draw`, or raise unless it is one of this selection's draws or a part of one."""
        if not isinstance(draw, Draw):
            raise TypeError(f"`draw` must be a Draw, got draw of type {type(draw).__name__}.")
        if draw.origin != self._origin:
            raise ValueError(f"`draw` must be a draw of this selection, got one of another: draw.origin={draw.origin}.")
        return draw

    def restored_draw(self, state: Any, *, whole: bool, name: str = "state") -> Draw:
        """Return the draw that `state` was made from, or raise unless a selection like this one can have made it.

        Args:
            state: What `Draw.state_dict` returned.
            whole: Whether it must be a whole batch. Otherwise it may be a part of one.
            name: What error messages call the state.
        """
        sizes = {"num_samples": self.num_samples, "max_size": self.batch_size}
        draw = Draw.from_state(state, **sizes, repeats=self.repeats, name=name)
        if whole:
            _checks.integer(f"len({name}['indices'])", len(draw), low=self.min_batch_size)
        if type(self).__module__.startswith(f"{__package__}."):  # a selection of the user's may weigh otherwise
            factor = self.num_samples * draw.probs * draw.loss_weights
            if not np.abs(factor - 1.0).max() <= 1e-6:
                raise ValueError(f"`{name}['loss_weights']` must be 1/(n·probs), got {factor.max():.3g} times as much.")
        return draw

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in the next batch. For looking at; O(n)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `inclusion_probs`.")

    def make_draw(self, indices: Any, probs: Any, loss_weights: Any = None) -> Draw:
        """Return a draw of this selection, for use in `draw`.

        Args:
            indices: k integers in [0, n), k between `min_batch_size` and `batch_size`. Distinct, unless `repeats`.
            probs: How often each of them is expected in such a batch: k numbers, or one for all; in (0, 1], or just
                above 0 if `repeats`.
            loss_weights: What each loss is multiplied by: k numbers, or one for all. None: 1/(n·probs), which makes
                the weighted sum of the losses unbiased for their mean over the dataset.
        """
        chosen = _checks.indices("indices", indices, below=self.num_samples, distinct=not self.repeats)
        size = _checks.integer("len(indices)", len(chosen), low=self.min_batch_size, high=self.batch_size)
        given = _for_each("probs", probs, size)
        check_probs("probs", given, repeats=self.repeats)
        unbiased = 1.0 / (self.num_samples * given)
        weights = unbiased if loss_weights is None else _for_each("loss_weights", loss_weights, size)
        return Draw(chosen.copy(), given, weights, self._origin).frozen()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors and plain values."""
        return {
            "settings": self.settings(),
            "origin": self._origin,
            "generator": self.generator.get_state(),
            **self._vectors(),
            **self.learned(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which a selection of the same settings saved.

        Raises:
            ValueError: If a setting differs or something is missing. Nothing is changed then.
        """
        self.check_state(state)
        self.restore(state)
        self._origin = state["origin"]
        self.generator.set_state(state["generator"])

    def settings(self) -> dict[str, Any]:
        """Return what a saved state must agree with, as plain values. Override it to add settings of your own."""
        settings = {"kind": type(self).__name__, "num_samples": self.num_samples, "batch_size": self.batch_size}
        if self.min_batch_size != self.batch_size:
            settings["min_batch_size"] = self.min_batch_size
        return settings

    def learned(self) -> dict[str, Any]:
        """Return what changes from draw to draw, as tensors and plain values. Override it together with `restore`."""
        return {}

    def _vectors(self) -> dict[str, Any]:
        """Return the `per_sample` entries. They are separate from `learned`, so loading copies none to list keys."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `learned` returned. `check_state` has checked it."""

    def check_state(self, state: Any) -> None:
        """Raise unless `state` can be loaded. Override it to add checks of what `learned` saves."""
        if isinstance(state, dict) and "settings" in state:  # first: it tells best what is wrong
            self._check_settings(state["settings"])
        keys = ("settings", "origin", "generator", *self.per_sample, *self.learned())
        if not isinstance(state, dict) or not set(keys) <= set(state):
            got = f"the keys {', '.join(map(str, state))}" if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"`state` must be a dict with the keys {', '.join(keys)}, got {got}.")
        _checks.integer("state['origin']", state["origin"], low=0)
        try:
            torch.Generator().set_state(state["generator"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"`state['generator']` must be the state of a torch.Generator: {error}") from error

    def _check_settings(self, settings: Any) -> None:
        own, saved = self.settings(), settings if isinstance(settings, dict) else {}
        for name in {**own, **saved}:
            if saved.get(name) != own.get(name):
                rule = f"be saved with {name}={own.get(name)!r}"
                raise ValueError(f"`state` must {rule}, got {name}={saved.get(name)!r}.")

    def __repr__(self) -> str:
        names = [name for name in self.settings() if name != "kind"]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name, None)!r}' for name in names)})"


def _for_each(name: str, value: Any, size: int) -> np.ndarray:
    """Return a new float64[size] from that many numbers ≥ 0, or from one for all."""
    array = _checks.array(name, value)
    return _checks.vector(name, np.full(size, array) if array.ndim == 0 else array, length=size).copy()


@jit
def largest(scores):
    """Return the largest score, or NaN if one of them is not a finite number at or above 0."""
    result = 0.0
    for score in scores:
        if not 0.0 <= score < np.inf:
            return np.nan
        result = max(result, score)
    return result
