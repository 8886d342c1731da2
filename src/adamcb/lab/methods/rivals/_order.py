"""The order of an epoch that is not made of all samples."""

from __future__ import annotations

import numpy as np
import torch


def shuffled(count: int, generator: torch.Generator) -> np.ndarray:
    """Return the numbers below `count` in random order, int64[count]."""
    return torch.randperm(count, generator=generator).numpy()
