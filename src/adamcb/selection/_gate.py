"""The gate: how many of the batches are drawn by weight, and which.

If all gradients have the same length, or if their lengths change from visit to visit, no probabilities are better than
equal ones. A reshuffled epoch, which visits every sample once, then beats independent draws. So the gate starts closed:
batches come from reshuffled epochs, and the weights only learn. Once the learned probabilities would make batches less
noisy, every epoch still begins reshuffled, and its last batches are drawn by weight: as large a share of the epoch as
the learned probabilities save.
"""

from __future__ import annotations

from dataclasses import dataclass

from adamcb import _checks
from adamcb.selection._moment import SecondMoment


@dataclass(frozen=True)
class Gate:
    """Decides whether the next batch is drawn by weight. An immutable value, which several bandits may share.

    A gate of your own is a subclass that overrides `is_open`.

    Args:
        min_gain: How much the learned probabilities must lower the second moment of the batch gradient, in (0, 1].

    Example:
        >>> moment = SecondMoment()
        >>> moment.note([1.0, 3.0], draw_probs=[0.5, 0.5], probs=[0.25, 0.75])  # the ratio is 0.8
        >>> Gate().is_open(moment, 0.5), Gate().is_open(moment, 0.9), Gate(0.3).is_open(moment, 0.9)
        (False, True, False)
    """

    min_gain: float = 0.1

    def __post_init__(self) -> None:
        gain = _checks.real("min_gain", self.min_gain, low=0.0, high=1.0)
        if gain == 0.0:
            way_out = "To draw every batch by weight, give the bandit gate=None."
            raise ValueError(f"`min_gain` must be a finite number in (0, 1], got min_gain={self.min_gain}. {way_out}")
        object.__setattr__(self, "min_gain", gain)

    def is_open(self, moment: SecondMoment, progress: float) -> bool:
        """Whether the next batch is drawn by weight.

        Args:
            moment: The bandit's estimate of what drawing by weight would bring. Samples that were never visited have
                equal weights, so they cannot open the gate.
            progress: The share of the epoch that will be done once the batch is trained on. Above 1 it counts
                as 1.
        """
        _checks.instance("moment", moment, SecondMoment, "a SecondMoment")
        progress = _checks.real("progress", progress, low=0.0)
        return moment.is_below(min(progress, 1.0 - self.min_gain))
