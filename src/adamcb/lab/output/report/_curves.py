"""Means and standard deviations over seeds, in the form in which the page draws them."""

from __future__ import annotations

import math
from typing import Any

from adamcb.lab.output.report._read import Folder, Row
from adamcb.lab.results.statistics import mean_and_spread

Numbers = list[float | None]


def curves(folder: Folder, rows: list[Row], *, each_seed: bool) -> list[dict[str, Any]]:
    """Return one dictionary of lists for each method of a folder, one entry for each epoch.

    Runs that diverged are in no mean.

    Args:
        folder: whose methods, and which of their runs diverged.
        rows: what was measured: its results or its selection.
        each_seed: whether every seed's own values are wanted too.

    Returns:
        For each method `epoch`, `mean` and `deviation` (by name), `count` (by name: how many seeds are in the mean),
        and, if wanted, `seeds`: for each seed `seed`, `diverged`, `epoch` and `values`.
    """
    names = list(rows[0].values) if rows else []
    result = []
    for method in folder.methods:
        mine = [row for row in rows if row.method == method]
        curve = _means(folder.complete(mine), names)
        if each_seed:
            curve["seeds"] = [_of_seed(mine, folder, method, seed, names) for seed in folder.seeds_of(method)]
        result.append(curve)
    return result


def _means(rows: list[Row], names: list[str]) -> dict[str, Any]:
    epochs = sorted({row.epoch for row in rows})
    curve: dict[str, Any] = {"epoch": epochs, "mean": {}, "deviation": {}, "count": {}}
    by_epoch = [[row for row in rows if row.epoch == epoch] for epoch in epochs]
    for name in names:
        columns = [[row.values[name] for row in group] for group in by_epoch]
        moments = [mean_and_spread(column) for column in columns]
        curve["mean"][name] = numbers(mean for mean, _ in moments)
        curve["deviation"][name] = numbers(deviation for _, deviation in moments)
        curve["count"][name] = [sum(map(math.isfinite, column)) for column in columns]
    return curve


def _of_seed(rows: list[Row], folder: Folder, method: str, seed: int, names: list[str]) -> dict[str, Any]:
    mine = sorted((row for row in rows if row.seed == seed), key=lambda row: row.epoch)
    values = {name: numbers(row.values[name] for row in mine) for name in names}
    diverged = (method, seed) in folder.diverged
    return {"seed": seed, "diverged": diverged, "epoch": [row.epoch for row in mine], "values": values}


def numbers(values: Any) -> Numbers:
    """Return floats as JSON has them: seven digits, and None for what is not finite."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
