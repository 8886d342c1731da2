"""Seeds that follow from one seed: the one place where random streams are told apart."""

from __future__ import annotations

import numpy as np


def derived_words(seed: int, *purpose: int, count: int) -> np.ndarray:
    """Return uint32[count] for one purpose, where one seed is too little.

    Example:
        >>> len(derived_words(0, 1, count=8))
        8
    """
    return np.random.SeedSequence((seed, *purpose)).generate_state(count)


def derived_seed(seed: int, *purpose: int) -> int:
    """Return a seed in [0, 2**63) for one purpose, for instance (rank, number of the batch).

    Streams of different purposes are independent of each other and of `seed` itself.

    Example:
        >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(0, 2)
        (True, False)
    """
    return int(np.random.SeedSequence((seed, *purpose)).generate_state(1, np.uint64)[0]) >> 1
