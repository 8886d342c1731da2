"""The rows that one run writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adamcb.lab.results import Row


class RunRows:
    """What was measured in a run so far.

    Args:
        finer: Whether losses and metrics are also measured within epochs.

    Attributes:
        results: The rows of results.csv.
        between: As `results`, within epochs.
        selection: The rows of selection.csv.
    """

    def __init__(self, *, finer: bool) -> None:
        self._finer = finer
        self.results: list[Row] = []
        self.between: list[Row] = []
        self.selection: list[Row] = []

    def has(self, step: int) -> bool:
        """Return whether the last losses and metrics are those of `step`."""
        return any(row["step"] == step for row in (*self.results[-1:], *self.between[-1:]))

    def as_dict(self) -> dict[str, list[Row]]:
        """Return the rows, as progress.json and done.json have them."""
        rows = {"results": self.results, "selection": self.selection}
        return {**rows, "between": self.between} if self._finer else rows

    def load(self, saved: Mapping[str, Any], *, until: int) -> None:
        """Take over the rows that `as_dict` returned, as far as step `until`."""
        self.results, self.between, self.selection = (
            [row for row in saved.get(name, []) if row["step"] <= until] for name in ("results", "between", "selection")
        )
