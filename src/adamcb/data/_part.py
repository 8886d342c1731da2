"""One rank's part of a draw that all ranks made alike."""

from __future__ import annotations

from dataclasses import dataclass, field

from adamcb import _checks
from adamcb.selection import Draw


@dataclass(frozen=True, eq=False, slots=True)
class DrawPart(Draw):
    """The rows of a draw that one rank trains on: row j of the part is row `rank + j·num_ranks` of the whole.

    Every rank makes the whole draw, so the parts of all ranks are the batch, each sample once. (Not K/W rows in one
    piece: samples that are in every batch stand together at the end of a draw, and would all be the last rank's.)

    Attributes:
        whole: The draw.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> draw = UniformSelection(num_samples=8, batch_size=4).draw()
        >>> parts = [part_of(draw, rank, 2) for rank in range(2)]
        >>> [len(part) for part in parts], parts[1].whole is draw
        ([2, 2], True)
    """

    whole: Draw = field(repr=False)


def part_of(draw: Draw, rank: int, num_ranks: int) -> Draw:
    """Return the part of `draw` that is this rank's; the draw itself if there is one rank.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> draw = UniformSelection(num_samples=8, batch_size=4).draw()
        >>> list(part_of(draw, 1, 2).indices) == list(draw.indices[1::2])
        True
    """
    _checks.instance("draw", draw, Draw, "a Draw")
    num_ranks = _checks.integer("num_ranks", num_ranks, low=1)
    return rows_of(draw, _checks.integer("rank", rank, low=0, high=num_ranks - 1), num_ranks)


def rows_of(draw: Draw, rank: int, num_ranks: int) -> Draw:
    """Do what `part_of` does, with arguments that are known to be right."""
    if num_ranks == 1:
        return draw
    rows = slice(rank, None, num_ranks)
    return DrawPart(draw.indices[rows], draw.probs[rows], draw.loss_weights[rows], draw.origin, draw)


def whole_of(draw: Draw) -> Draw:
    """Return the draw that `draw` is a part of, or itself.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> draw = UniformSelection(num_samples=8, batch_size=4).draw()
        >>> whole_of(part_of(draw, 0, 2)) is whole_of(draw) is draw
        True
    """
    return draw.whole if isinstance(draw, DrawPart) else _checks.instance("draw", draw, Draw, "a Draw")
