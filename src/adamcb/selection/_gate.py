"""The gate: how far drawing by the weights pays, told from the batches that were drawn anyway.

Where all gradients are of one length, or their lengths change from visit to visit, no probabilities are better than
equal ones; and then a reshuffled epoch, which sees every sample once, is better than independent draws. So the gate
starts closed: batches come from reshuffled epochs, and the weights only learn. Then it opens as far as it pays: every
epoch begins reshuffled, and the share of it that is drawn by the weights, its end, is the share that they save.
"""

from __future__ import annotations

from adamcb import _checks
from adamcb.selection._tree import jit

_SUMS = ("chosen", "mass", "uniform", "count")

# Without exploration a probability may be 0. Below this share of that of the draw, it counts as this much.
LEAST_SHARE = 1e-9


@jit
def batch_sums(probs, norms, drawn_with):
    """Return what a batch drawn with probabilities u = `drawn_with` tells of the sums over all n samples.

    Without bias: Σ‖g‖²/p (as Σ‖g‖²/(p u) over the batch), Σp, Σ‖g‖² and n.
    """
    chosen = mass = uniform = count = 0.0
    for j in range(len(probs)):
        square = norms[j] * norms[j] / drawn_with[j]
        chosen += square / max(probs[j], LEAST_SHARE * drawn_with[j])
        mass += probs[j] / drawn_with[j]
        uniform += square
        count += 1.0 / drawn_with[j]
    return chosen, mass, uniform, count


@jit
def _averaged(averages, sums, memory):
    """Return the moving averages of the four sums, one batch later."""
    a, b, c, d = averages
    new = 1.0 - memory
    return (
        memory * a + new * sums[0],
        memory * b + new * sums[1],
        memory * c + new * sums[2],
        memory * d + new * sums[3],
    )


class Gate:
    """Compares the second moment of the batch gradient, drawn by the weights, with that of uniform sampling.

    Their ratio is Σ‖g‖²/p · Σp ÷ (Σ‖g‖² · n), as Σp = K. All four sums are estimated from each batch, before it
    changes a weight, and averaged over about the last 50. Σp and n are known, but estimated with the others they make
    the ratio 1 as long as the samples of the batches have equal weights: those never visited open no gate.

    Args:
        min_gain: The gate is closed unless the ratio is below 1 − `min_gain`; 0: it is always open.
    """

    memory = 0.98

    def __init__(self, min_gain: float) -> None:
        self.min_gain = _checks.real("min_gain", min_gain, low=0.0, high=1.0)
        self._averages = (0.0,) * len(_SUMS)

    def note(self, sums: tuple[float, float, float, float]) -> None:
        """Take note of a batch's sums."""
        self._averages = _averaged(self._averages, sums, self.memory)

    def is_open(self, progress: float) -> bool:
        """Whether to draw by the weights the batch with which this share of the epoch, in (0, 1], will be done."""
        chosen, mass, uniform, count = self._averages
        return self.min_gain == 0.0 or chosen * mass < min(progress, 1.0 - self.min_gain) * uniform * count

    def state_dict(self) -> dict[str, float]:
        """Return the averages."""
        return dict(zip(_SUMS, self._averages, strict=True))

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`, which may hold more than is needed."""
        self._averages = tuple(state[name] for name in _SUMS)
