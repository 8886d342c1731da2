"""When a loader draws, written out: the slow twin of `BanditLoader` on `DataLoader`'s workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from adamcb.selection import Draw, Selection


def epoch(selection: Selection, ahead: int) -> Iterator[Draw]:
    """Yield the draws of an epoch, of which `ahead` are made before the first is handed out.

    Each time one is handed out, another is made first, until the epoch has floor(n/K): with ahead = 0 the one that is
    then handed out. Whoever updates the selection between two of them changes only draws that were not yet made.
    """
    left = selection.num_samples // selection.batch_size
    made: deque[Draw] = deque()
    for _ in range(min(ahead, left)):
        made.append(selection.draw())
        left -= 1
    while left or made:
        if left:
            made.append(selection.draw())
            left -= 1
        yield made.popleft()
