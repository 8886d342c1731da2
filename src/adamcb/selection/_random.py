"""Random numbers from a selection's own `torch.Generator`, and the order of an epoch."""

from __future__ import annotations

import numpy as np
import torch


def own_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return `generator`, or a new one seeded from torch's global generator, as torch's own samplers do."""
    if generator is None:
        return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        raise TypeError(f"`generator` must be a torch.Generator on the CPU, got generator={generator!r}.")
    return generator


def uniforms(count: int, generator: torch.Generator) -> np.ndarray:
    """Return float64[count], uniform in [0, 1)."""
    return torch.rand(count, dtype=torch.float64, generator=generator).numpy()


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
    positions[order] = np.arange(len(order), dtype=order.dtype)
    return positions
