"""Cases that several tests share."""

from __future__ import annotations

import numpy as np

from adamcb.selection import Draw, Selection

# Weight vectors for up to seven samples, by name: the first n entries are used.
SMALL_WEIGHTS = {
    "equal": np.ones(7),
    "mixed": np.array([0.3, 2.0, 0.7, 1.1, 0.05, 1.9, 0.4]),
    "one heavy": np.array([1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0]),
    "two heavy": np.array([30.0, 1.0, 0.1, 40.0, 0.5, 1.0, 2.0]),
    "wide": np.array([1e-12, 1.0, 1e-3, 1e5, 1e-6, 10.0, 1e-2]),
}
EXPLORATIONS = (0.0, 0.4, 1.0)


def draw_of(selection: Selection, indices: list[int], probs: np.ndarray) -> Draw:
    """Return the draw of these samples as `selection` would make it; `probs` are those of all samples."""
    return selection.make_draw(indices, probs[indices])
