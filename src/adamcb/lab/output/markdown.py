"""What the reports of the benches are written with: Markdown tables, and estimates as their cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adamcb.lab.results.statistics import Column, Estimate


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table; the first line is the heading."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(value: Estimate, column: Column) -> str:
    """Return an estimate as text: a ratio with its interval, or a difference with its margin."""
    margin = value.margin
    if not column.is_ratio:
        digits = 2 if abs(value.mean) >= 0.1 or "points" in column.title else 4
        return f"{value.mean:+.{digits}f}" + ("" if math.isnan(margin) else f" ± {margin:.{digits}f}")
    ratio = math.exp(value.mean)
    if value.at_least:
        return f"≥ {ratio:.2f}"
    ends = "" if math.isnan(margin) else f" [{math.exp(value.mean - margin):.2f}, {math.exp(value.mean + margin):.2f}]"
    return f"{ratio:.2f}{ends}"
