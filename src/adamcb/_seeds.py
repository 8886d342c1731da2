"""Seeds that follow from one seed: the one place where random streams are told apart."""

from __future__ import annotations

import numpy as np


def derived_seed(seed: int, *purpose: int) -> int:
    """Return a seed in [0, 2**63) for one purpose, for instance (rank, number of the batch).

    Streams of different purposes are independent of each other and of `seed` itself.

    Example:
        >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(0, 2)
        (True, False)
    """
    return int(np.random.SeedSequence((seed, *purpose)).generate_state(1, np.uint64)[0]) >> 1
