"""Random numbers from a selection's own `torch.Generator`, and the order of an epoch."""

from __future__ import annotations

import numpy as np
import torch

from adamcb.selection._tree import jit


def own_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return `generator`, or a new one seeded from torch's global generator, as torch's own samplers do."""
    if generator is None:
        return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        raise TypeError(f"`generator` must be a torch.Generator on the CPU, got generator={generator!r}.")
    return generator


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


def permutation(num_samples: int, seed: int) -> np.ndarray:
    """Return the random order that `seed` stands for: an epoch's order is saved as one number, not n."""
    dtype = torch.int32 if num_samples < 2**31 else torch.int64
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed), dtype=dtype).numpy()


def inverse(order: np.ndarray) -> np.ndarray:
    """Return the position of every sample in `order`."""
    positions = np.empty_like(order)
    _fill_inverse(order, positions)
    return positions


@jit
def _fill_inverse(order, positions):
    for position in range(len(order)):
        positions[order[position]] = position
