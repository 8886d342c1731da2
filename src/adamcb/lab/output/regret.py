"""What `adamcb regret` writes beside its rows: tables with growth exponents and intervals, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from adamcb.lab.commands.regret_runs import METHODS
from adamcb.lab.output.figures import STYLE, save
from adamcb.lab.output.looks import LOOKS
from adamcb.lab.results import Row, write_text
from adamcb.lab.results.statistics import Estimate, estimate
from adamcb.theory import LogisticProblem, growth_exponent

ACROSS = {"T": "steps", "K": "batch_size", "n": "num_samples"}
_LOOKS = {
    **LOOKS,
    "uniform": LOOKS["adam"],
    "reshuffled": LOOKS["amsgrad"],
    "adamcb-paper-known-norm": LOOKS["adamcb-listing"],
    "scale-free": LOOKS["adamcb"],
}


def write_summary(path: Path, rows: Sequence[Row], dataset: str, problem: LogisticProblem) -> list[str]:
    """Write summary.md with all tables, and return the lines with the growth exponents."""
    lines = [
        f"# Regret on {dataset}: logistic regression, n = {problem.num_samples}, d = {problem.dimension}, "
        f"μ = {problem.penalty:g}",
        "",
        "± is half of a 95 % interval over seeds.",
    ]
    short = list(lines)
    for sweep in _present(rows, "sweep"):
        part = [row for row in rows if row["sweep"] == sweep]
        exponents = ["", f"## Against {sweep}: {_fixed(part, sweep)}", "", *_exponents(part, sweep)]
        short += exponents
        lines += [*exponents, "", *_decomposition(part, sweep), "", *_bounds(part, sweep)]
    write_text(path, "\n".join(lines) + "\n")
    return short


def _present(rows: Iterable[Row], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def grid(rows: Sequence[Row], sweep: str, method: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a sweep, and a column as [seeds, points]."""
    own = [row for row in rows if row["method"] == method and row["sweep"] == sweep]
    points = sorted(_present(own, ACROSS[sweep]))
    by_key = {(row["seed"], row[ACROSS[sweep]]): row[column] for row in own}
    values = [[by_key[seed, point] for point in points] for seed in _present(own, "seed")]
    return np.array(points, dtype=float), np.array(values, dtype=float)


def _exponents(rows: Sequence[Row], sweep: str) -> list[str]:
    """Return a table: b of value ≈ a·xᵇ for every method."""
    columns = {"cumulative": "cumulative regret", "online": "online regret", "lemma1": "Lemma 1", "bound": "theorem"}
    lines = [f"Exponent in {sweep}:", "", _line("method", *columns.values()), _rule(1 + len(columns))]
    for method in _present(rows, "method"):
        cells = [_exponent(*grid(rows, sweep, method, column)) for column in columns]
        lines.append(_line(METHODS[method].label, *cells))
    return lines


def _exponent(points: np.ndarray, values: np.ndarray) -> str:
    if len(points) < 2 or not np.nanmin(values, initial=math.inf) > 0.0 or np.isnan(values).any():
        return "–"
    return str(growth_exponent(points, values))


def _decomposition(rows: Sequence[Row], sweep: str) -> list[str]:
    """Return a table of the regrets, the gaps and the second moment at every point."""
    heads = (sweep, "method", "γ", "cumulative", "÷ uniform", "online", "(A)", "(B)", "overfit",
             "moment ÷ uniform", "best fixed ÷ uniform")  # fmt: skip
    lines = [_line(*heads), _rule(len(heads))]
    for point in sorted(_present(rows, ACROSS[sweep])):
        here = [row for row in rows if row[ACROSS[sweep]] == point]
        for method in _present(rows, "method"):
            own = [row for row in here if row["method"] == method]
            gaps = [_measured([row[name] for row in own]) for name in ("gap_batches", "gap_minimizers", "overfit")]
            moments = [
                str(estimate([row[name] / row["uniform_moment"] for row in own]))
                for name in ("moment", "best_fixed_moment")
            ]
            regrets = [_measured([row[name] for row in own]) for name in ("cumulative", "online")]
            regrets.insert(1, _paired(own, here))
            lines.append(_line(point, METHODS[method].label, f"{own[0]['exploration']:.3f}", *regrets, *gaps, *moments))
    return lines


def _paired(own: Sequence[Row], here: Sequence[Row]) -> str:
    """Return cumulative regret as a multiple of uniform sampling's, seed by seed: these draw from the same numbers."""
    uniform = {row["seed"]: row["cumulative"] for row in here if row["method"] == "uniform"}
    return str(estimate([row["cumulative"] / uniform[row["seed"]] for row in own])) if uniform else "–"


def _bounds(rows: Sequence[Row], sweep: str) -> list[str]:
    """Return a table of bounds as multiples of the measured regret."""
    names = {"lemma1": "Lemma 1", "bound": "theorem", "bound_known": "L known, D as read", "bound_printed": "with (B)"}
    lines = ["Bound divided by measured cumulative regret (mean over seeds):", ""]
    lines += [_line(sweep, "method", *names.values()), _rule(2 + len(names))]
    for point in sorted(_present(rows, ACROSS[sweep])):
        for method in _present(rows, "method"):
            own = [row for row in rows if row["method"] == method and row[ACROSS[sweep]] == point]
            cells = ["–" if own[0][name] is None else f"{_ratio(own, name):.1e}" for name in names]
            lines.append(_line(point, METHODS[method].label, *cells))
    return lines


def _ratio(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] / row["cumulative"] for row in rows]))


def _measured(values: Sequence[float]) -> str:
    found: Estimate = estimate(values)
    digits = 1 if abs(found.mean) >= 10 else 2
    margin = "" if math.isnan(found.margin) else f" ± {found.margin:.{digits}f}"
    return f"{found.mean:.{digits}f}{margin}"


def _line(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def draw_figures(folder: Path, rows: Sequence[Row], dataset: str) -> list[Path]:
    """Write a figure for each sweep, as PNG and SVG: regret, the second moment, and the bounds."""
    written = []
    with matplotlib.rc_context(STYLE):
        for sweep in _present(rows, "sweep"):
            part = [row for row in rows if row["sweep"] == sweep]
            figure = Figure(figsize=(11.0, 4.2), layout="constrained")
            regret, moment, bounds = figure.subplots(1, 3)
            _draw_regret(regret, part, sweep)
            _draw_moment(moment, part, sweep)
            _draw_bounds(bounds, part, sweep)
            handles, labels = regret.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), handlelength=3.5)
            seeds = len(_present(part, "seed"))
            figure.suptitle(f"{dataset}: {_fixed(part, sweep)}; mean and 95 % interval over {seeds} seeds", fontsize=10)
            written += save(figure, folder, f"regret-{dataset}-{sweep}")
    return written


def _fixed(rows: Sequence[Row], sweep: str) -> str:
    return ", ".join(f"{name} = {rows[0][column]}" for name, column in ACROSS.items() if name != sweep)


def _draw_regret(axes: Axes, rows: Sequence[Row], sweep: str) -> None:
    for method in _present(rows, "method"):
        points, values = grid(rows, sweep, method, "cumulative")
        _plot(axes, method, points, values)
    _scale(axes, points, "log")
    low, high = axes.get_ylim()
    if high / low < 20.0:  # or there would be no label between two powers of ten
        ticks = [m * 10.0**e for e in range(-1, 6) for m in (1, 1.5, 2, 3, 4, 5, 6, 8) if low <= m * 10.0**e <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("cumulative regret")
    axes.set_xlabel(sweep)


def _draw_moment(axes: Axes, rows: Sequence[Row], sweep: str) -> None:
    """Draw the second moment as a multiple of uniform sampling's, and the least that fixed probabilities reach."""
    for method in _present(rows, "method"):
        points, values = grid(rows, sweep, method, "moment")
        _plot(axes, method, points, values / grid(rows, sweep, method, "uniform_moment")[1])
    method = _present(rows, "method")[-1]
    points, best = grid(rows, sweep, method, "best_fixed_moment")
    best = (best / grid(rows, sweep, method, "uniform_moment")[1]).mean(axis=0)
    axes.plot(points, best, color="#555555", linewidth=1.0, linestyle=(0, (1, 3)))
    axes.annotate("best fixed probabilities", (points[-1], best[-1]), xytext=(-2, -14), textcoords="offset points",
                  ha="right", va="top", fontsize=8, color="#333333")  # fmt: skip
    _scale(axes, points, "linear")
    axes.set_ylim(bottom=0.0)
    axes.set_title("second moment / uniform sampling's")
    axes.set_xlabel(sweep)


def _draw_bounds(axes: Axes, rows: Sequence[Row], sweep: str) -> None:
    """Draw the measured regret at the bottom, and the bounds, whose names stand on the lines."""
    methods = [name for name in _present(rows, "method") if METHODS[name].theorem]
    for column, words in (("cumulative", "measured"), ("bound", "theorem"), ("bound_printed", "theorem as printed")):
        heights = []
        for method in methods:
            points, values = grid(rows, sweep, method, column)
            _plot(axes, method, points, values)
            middle = len(points) // 2
            heights.append(values.mean(axis=0)[middle])
        if methods:
            # The topmost name stands above its lines, the others below theirs, so that none is between two bounds.
            top = column == "bound_printed"
            axes.annotate(words, (points[middle], max(heights) if top else min(heights)), xytext=(0, 7 if top else -7),
                          textcoords="offset points", ha="center", va="bottom" if top else "top", fontsize=8,
                          color="#333333")  # fmt: skip
            _scale(axes, points, "log")
    axes.margins(y=0.1)
    axes.set_title("measured, and the theorems' bounds")
    axes.set_xlabel(sweep)


def _plot(axes: Axes, method: str, points: np.ndarray, values: np.ndarray) -> None:
    look = _LOOKS[method]
    found = [estimate(values[:, i].tolist()) for i in range(len(points))]
    mean = np.array([entry.mean for entry in found])
    above = np.nan_to_num(np.array([entry.margin for entry in found]))
    below = np.minimum(above, 0.5 * mean)  # a logarithmic axis has no place for 0
    # A step aside for every method, or one would hide the others.
    aside = 1.02 ** (list(METHODS).index(method) - 0.5 * (len(METHODS) - 1))
    axes.errorbar(aside * points, mean, yerr=[below, above], color=look.color, linestyle=look.dashes,
                  marker=look.marker, markersize=4.5, linewidth=1.5, capsize=2.5, elinewidth=1.0,
                  label=METHODS[method].label)  # fmt: skip


def _scale(axes: Axes, points: np.ndarray, vertical: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(points, [f"{point:g}" for point in points])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yscale(vertical)
