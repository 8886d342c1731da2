"""Random numbers from a selection's own `torch.Generator`, and shuffled orders."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from adamcb import _checks
from adamcb._jit import jit
from adamcb.selection._shuffle import Shuffle

# Orders of more samples are computed where they are needed: as arrays, order and inverse take 8 bytes a sample.
MOST_STORED = 2**28


def own_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return `generator`, or a new one seeded from torch's global generator, as torch's own samplers do."""
    if _checks.generator(generator) is None:
        return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
    return cast(torch.Generator, generator)


class Uniforms:
    """Numbers in [0, 1), `count` at a time, drawn in blocks: one call of torch costs as much as a whole draw."""

    def __init__(self, count: int, generator: torch.Generator, *, calls: int = 16) -> None:
        self.count, self.size, self.generator = count, count * calls, generator
        self.rest = np.empty(0)  # what is left of the block

    def take(self) -> np.ndarray:
        """Return the next float64[count]."""
        if not len(self.rest):
            self.rest = torch.rand(self.size, dtype=torch.float64, generator=self.generator).numpy()
        taken, self.rest = self.rest[: self.count], self.rest[self.count :]
        return taken


def new_seed(generator: torch.Generator) -> int:
    """Return a fresh seed, drawn from `generator`."""
    return int(torch.randint(2**62, (), dtype=torch.int64, generator=generator))


def permutation(num_samples: int, seed: int) -> np.ndarray | Shuffle:
    """Return the random order that `seed` stands for: an epoch's order is saved as one number, not n."""
    if num_samples > MOST_STORED:
        return Shuffle(num_samples, seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(num_samples, generator=generator, dtype=torch.int32).numpy()


def inverse(order: np.ndarray | Shuffle) -> np.ndarray | Shuffle:
    """Return the position of every sample in `order`."""
    if isinstance(order, Shuffle):
        return order.inverse()
    positions = np.empty_like(order)
    _fill_inverse(order, positions)
    return positions


@jit
def _fill_inverse(order, positions):
    for position in range(len(order)):
        positions[order[position]] = position


class ShuffledEpochs:
    """Hands out the samples of shuffled epochs, one part after the other.

    When fewer samples are left than asked for, they are dropped and the next epoch begins.

    Args:
        num_samples: n.
        generator: Where the orders come from.

    Example:
        >>> epochs = ShuffledEpochs(5, torch.Generator().manual_seed(0))
        >>> first, second = epochs.take(2), epochs.take(3)
        >>> sorted([*first.tolist(), *second.tolist()])
        [0, 1, 2, 3, 4]
    """

    def __init__(self, num_samples: int, generator: torch.Generator) -> None:
        self.num_samples = _checks.num_samples(num_samples)
        self.generator = _checks.instance("generator", generator, torch.Generator, "a torch.Generator")
        self._start(new_seed(generator), 0)

    def _start(self, seed: int, position: int) -> None:
        self._order = permutation(self.num_samples, seed)
        self._seed, self._position = seed, position

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` samples, int64[count]."""
        if self._position + _checks.integer("count", count, low=0, high=self.num_samples) > self.num_samples:
            self._start(new_seed(self.generator), 0)
        first = self._position
        self._position += count
        return self._order[first : first + count].astype(np.int64)

    def state_dict(self) -> dict[str, int]:
        """Return where it stands: two numbers. The generator is saved by whoever owns it."""
        return {"seed": self._seed, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        self.check_state(state)
        self._start(state["seed"], state["position"])

    def check_state(self, state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        saved = state if isinstance(state, dict) else {}
        _checks.seed(f"{name}['seed']", saved.get("seed"))
        _checks.integer(f"{name}['position']", saved.get("position"), low=0, high=self.num_samples)
