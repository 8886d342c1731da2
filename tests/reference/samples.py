"""The slow twin of the record of samples: every visit in a list, and all means at the end."""

from __future__ import annotations

import math
from collections import defaultdict


class SlowSamples:
    """Keeps every loss and every score."""

    def __init__(self) -> None:
        self.visits: dict[int, list[tuple[float, float | None]]] = defaultdict(list)

    def note(self, indices, losses, scores) -> None:
        for j, index in enumerate(indices):
            self.visits[int(index)].append((float(losses[j]), None if scores is None else float(scores[j])))

    def row(self, index: int) -> tuple[int, float, float, float]:
        """Return count, last score, mean score and mean loss."""
        visits = self.visits.get(index, [])
        if not visits:
            return 0, math.nan, math.nan, math.nan
        mean, last = math.nan, math.nan
        total = 0.0  # of scores, where the mean until then stands in for those that were not measured
        for i, (_, score) in enumerate(visits):
            if score is None:
                total += 0.0 if math.isnan(mean) else mean
                continue
            total = score * (i + 1) if math.isnan(mean) else total + score
            mean, last = total / (i + 1), score
        return len(visits), last, mean, sum(loss for loss, _ in visits) / len(visits)
