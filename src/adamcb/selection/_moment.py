"""How noisy the batches are, compared with uniform sampling: one running estimate for everyone who asks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamcb import _checks
from adamcb._jit import jit

_SUMS = ("chosen", "mass", "uniform", "count")
_SPREAD = ("spread", "trust", "trust_squared")
_RECORD = ("found", "expected")

# Without exploration a probability may be 0. It counts as at least this share of the probability of the draw.
LEAST_SHARE = 1e-9


class SecondMoment:
    """A running estimate of the batch gradient's second moment, divided by that of uniform sampling.

    The second moment of a batch gradient drawn with inclusion probabilities p is Σ‖g‖²/p, up to a constant. For equal
    probabilities it is Σ‖g‖²·n/K, so their ratio is ρ = Σ‖g‖²/p · Σp ÷ (Σ‖g‖² · n). Below 1, batches drawn by p are
    less noisy than uniform ones; ρ·K samples drawn by p are as noisy as K uniform ones. (Both second moments contain
    the squared mean gradient. Without it the ratio would be further from 1.)

    Every batch gives an unbiased estimate of all four sums, whatever probabilities it was drawn with. The estimates are
    averaged over about the last 1/(1 − `memory`) batches. Σp = K and n are known, but estimating them along with the
    others makes ρ exactly 1 while the samples in the batches have equal weights.

    ρ changes during training, so it is averaged over few batches. But where rare samples have much of the second
    moment, few batches mostly hold none of them, and the estimate is too low. So it keeps a longer record of how noisy
    batches were beside what it had said before: see `excess`.

    Args:
        memory: The weight of the past in the moving averages, in [0, 1).
        record_memory: The weight of the past in the record, in [0, 1). None: `memory`.

    Example:
        >>> moment = SecondMoment()
        >>> moment.note([1.0, 3.0], draw_probs=[0.5, 0.5], probs=[0.25, 0.75])
        >>> moment.ratio
        0.8
    """

    def __init__(self, memory: float = 0.98, record_memory: float | None = None) -> None:
        self.memory = _checks.real("memory", memory, low=0.0, high=1.0, high_open=True)
        record_memory = self.memory if record_memory is None else record_memory
        self.record_memory = _checks.real("record_memory", record_memory, low=0.0, high=1.0, high_open=True)
        self._sums = (0.0, 0.0, 0.0, 0.0)
        # Of how far single batches are from the averages, and of the weights that batches have in them.
        self._spread = (0.0, 0.0, 0.0)
        # Of Σ‖g‖²/p² and Σ‖g‖²/p in single batches, both divided by their averages before.
        self._record = (0.0, 0.0)

    def note(self, scores: Any, draw_probs: Any, probs: Any = None) -> None:
        """Take note of a batch.

        Args:
            scores: float64[k], the norms of the per-sample gradients.
            draw_probs: float64[k], the probabilities with which these samples were drawn.
            probs: float64[k], the probabilities to estimate the ratio for. None: those of the draw.

        Raises:
            ValueError: If one of these is NaN, infinite or negative, or a `draw_probs` 0. Nothing is changed then.
        """
        values, drawn = _floats("scores", scores), _floats("draw_probs", draw_probs)
        asked = drawn if probs is None else _floats("probs", probs)
        if not len(values) == len(drawn) == len(asked) > 0:
            lengths = f"{len(values)}, {len(drawn)} and {len(asked)}"
            raise ValueError(f"`scores`, `draw_probs` and `probs` must be as long as each other, got {lengths}.")
        memories = self.memory, self.record_memory
        sums, spread, record = _noted(self._sums, self._spread, self._record, memories, values, drawn, asked)
        if not math.isfinite(sums[3]):
            for name, numbers in {"scores": values, "draw_probs": drawn, "probs": asked}.items():
                _checks.vector(name, numbers)
            bad = np.flatnonzero(~(drawn > 0.0))
            where = f"draw_probs[{bad[0]}]={drawn[bad[0]]}" if len(bad) else f"draw_probs as small as {drawn.min()}"
            raise ValueError(f"`draw_probs` must be above 0, got {where}.")
        self._sums, self._spread, self._record = sums, spread, record

    @property
    def ratio(self) -> float:
        """ρ, for batches of equal size; NaN if nothing is known yet."""
        chosen, mass, uniform, count = self._sums
        return chosen * mass / (uniform * count) if uniform * count > 0.0 else math.nan

    @property
    def error(self) -> float:
        """The standard error of `ratio`, to first order, as if batches were independent; NaN if nothing is known yet.

        A ratio that is changing counts as an uncertain one.
        """
        spread, trust, trust_squared = self._spread
        return self.ratio * math.sqrt(spread / trust * trust_squared) / trust if trust > 0.0 else math.nan

    @property
    def excess(self) -> float:
        """How noisy batches would be, were each of them as small as the estimate before it allows; at least 1.

        It is above 1 where rare samples have much of the second moment: the estimate is too low most of the time, and
        too high right after such a sample.
        """
        found, expected = self._record
        return found / expected if found > expected > 0.0 else 1.0

    def ratio_to(self, num_samples: int, batch_size: int) -> float:
        """Return the second moment divided by that of `batch_size` uniform samples out of `num_samples`.

        For batches noted with the probabilities of their draw, it tells how noisy they were, however many samples each
        of them had. NaN if nothing is known yet.
        """
        num_samples, batch_size = _checks.num_samples(num_samples), _checks.count("batch_size", batch_size)
        chosen, _, uniform, _ = self._sums
        return chosen * batch_size / (uniform * num_samples) if uniform > 0.0 else math.nan

    def is_below(self, share: float) -> bool:
        """Whether ρ is known to be below `share`."""
        chosen, mass, uniform, count = self._sums
        share = _checks.real("share", share)
        return chosen * mass < share * uniform * count

    def state_dict(self) -> dict[str, float]:
        """Return the averages."""
        return dict(zip((*_SUMS, *_SPREAD, *_RECORD), (*self._sums, *self._spread, *self._record), strict=True))

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        self.check_state(state)
        self._sums = (state["chosen"], state["mass"], state["uniform"], state["count"])
        self._spread = (state["spread"], state["trust"], state["trust_squared"])
        self._record = (state["found"], state["expected"])

    @staticmethod
    def check_state(state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        saved = state if isinstance(state, dict) else {}
        for key in (*_SUMS, *_SPREAD, *_RECORD):
            _checks.real(f"{name}['{key}']", saved.get(key), low=0.0)

    def __repr__(self) -> str:
        return f"SecondMoment(ratio={self.ratio:.4g}, memory={self.memory})"


def _floats(name: str, value: Any) -> np.ndarray:
    """Return float64[k]; what is so already is not looked at."""
    is_plain = type(value) is np.ndarray and value.dtype == np.float64 and value.ndim == 1
    return value if is_plain else _checks.vector(name, value)


@jit
def _noted(sums, spread, record, memories, scores, draw_probs, probs):
    """Return the moving averages, one batch later; the last sum is not finite if a number is out of its range."""
    batch = _batch_sums(scores, draw_probs, probs)
    new_sums, new_spread = _averaged(sums, spread, batch, memories[0])
    return new_sums, new_spread, _recorded(record, sums, spread[1], batch, memories[1])


@jit
def _batch_sums(scores, draw_probs, probs):
    """Return what one batch tells of the four sums; the last is not finite if a number is out of its range."""
    chosen = mass = uniform = count = 0.0
    for j in range(len(probs)):
        if not (0.0 <= scores[j] < np.inf and 0.0 < draw_probs[j] < np.inf and 0.0 <= probs[j] < np.inf):
            return 0.0, 0.0, 0.0, np.inf
        square = scores[j] * scores[j] / draw_probs[j]
        chosen += square / max(probs[j], LEAST_SHARE * draw_probs[j])
        mass += probs[j] / draw_probs[j]
        uniform += square
        count += 1.0 / draw_probs[j]
    return chosen, mass, uniform, count


@jit
def _averaged(sums, spread, batch, memory):
    """Return the moving averages, one batch later."""
    new = 1.0 - memory
    a, b = memory * sums[0] + new * batch[0], memory * sums[1] + new * batch[1]
    c, d = memory * sums[2] + new * batch[2], memory * sums[3] + new * batch[3]
    trust = memory * spread[1] + new
    squares, trust_squared = memory * spread[0], memory * memory * spread[2] + new * new
    if a * b * c * d > 0.0:
        # The relative deviation of the ratio that this batch stands for, to first order.
        deviation = trust * (batch[0] / a + batch[1] / b - batch[2] / c - batch[3] / d)
        squares += new * deviation * deviation
    return (a, b, c, d), (squares, trust, trust_squared)


@jit
def _recorded(record, sums, trust, batch, memory):
    """Return the record, one batch later, from what was known before it."""
    found, expected, new = memory * record[0], memory * record[1], 1.0 - memory
    if sums[0] * sums[2] > 0.0:
        found += new * trust * batch[0] / sums[0]
        expected += new * trust * batch[2] / sums[2]
    return found, expected
