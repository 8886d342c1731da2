"""How a method looks, in figures and on the page: its color, its dashes and its marker.

Colors are those of Okabe and Ito, which the color-blind can tell apart. Dashes and markers differ too, so that a
black-and-white print will do. The page has the same colors and dashes by number, as the classes c0–c7 and d0–d7 of its
style sheet. Gray replaces their yellow, which is hard to see on white paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLORS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#999999", "#0072B2", "#D55E00", "#CC79A7")
# The same on a dark ground.
DARK_COLORS = ("#F2F2F2", "#E69F00", "#56B4E9", "#00B383", "#9C9C9C", "#3A9BE0", "#F0732A", "#CC79A7")
# As in the style sheet: lengths of strokes and gaps, in widths of the line.
DASHES: tuple[Any, ...] = (
    "-",
    (0, (4, 2)),
    (0, (1, 1.3)),
    (0, (4, 1.3, 1, 1.3)),
    (0, (6, 2)),
    (0, (2.5, 1.2)),
    (0, (4, 1.3, 1, 1.3, 1, 1.3)),
    (0, (5, 1.3, 1, 1.3, 1, 1.3, 1, 1.3)),
)


@dataclass(frozen=True)
class Look:
    """The numbers of a color and of a kind of dashes, and a marker."""

    color_number: int
    dashes_number: int
    marker: str

    @property
    def color(self) -> str:
        """The color, as matplotlib takes it."""
        return COLORS[self.color_number]

    @property
    def dashes(self) -> Any:
        """The dashes, as matplotlib takes them."""
        return DASHES[self.dashes_number]

    @property
    def style(self) -> str:
        """The classes of the page's style sheet."""
        return f"c{self.color_number} d{self.dashes_number}"


LOOKS = {
    "adam": Look(0, 0, "o"),
    "amsgrad": Look(4, 4, "s"),
    "adamx": Look(2, 2, "^"),
    "adamx-paper": Look(2, 1, "<"),
    "adambs": Look(6, 6, "D"),
    "adambs-original": Look(1, 3, "v"),
    "adamcb": Look(3, 0, "*"),
    "adamcb-paper": Look(5, 5, "P"),
    "adamcb-listing": Look(7, 7, "X"),
    "last-norm": Look(1, 4, "d"),
    "last-loss": Look(5, 2, "H"),
    "vrb": Look(4, 1, "8"),
    "infobatch": Look(7, 4, "x"),
    "selective-backprop": Look(6, 2, "+"),
    "presampling": Look(2, 5, "1"),
    "adamcb-smaller": Look(1, 1, "h"),
    "small-batches": Look(7, 3, ">"),
    "balanced-sampler": Look(4, 2, "p"),
    "weighted-loss": Look(5, 6, "2"),
    "focal-loss": Look(6, 5, "3"),
    "undersampling": Look(7, 1, "4"),
    "rad": Look(2, 7, "|"),
}
_SPARE_MARKERS = ("$a$", "$b$", "$c$", "$d$", "$e$", "$f$")


def look_of(method: str, methods: Sequence[str]) -> Look:
    """Return how a method is drawn beside others. One from a user's file takes a look that none of them has."""
    if method in LOOKS:
        return LOOKS[method]
    taken = {(look.color_number, look.dashes_number) for name, look in LOOKS.items() if name in methods}
    strangers = [name for name in methods if name not in LOOKS]
    free = [(color, (color + shift) % 8) for shift in range(8) for color in range(8)]
    free = [pair for pair in free if pair not in taken]
    place = strangers.index(method)
    return Look(*free[place % len(free)], _SPARE_MARKERS[place % len(_SPARE_MARKERS)])
