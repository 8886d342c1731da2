"""Curves on paper: means over seeds with a band of one standard deviation, as PNG and SVG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from adamcb._files import whole_file
from adamcb.lab.experiment import title_of
from adamcb.lab.output.looks import look_of
from adamcb.lab.results.columns import Measure, Row, measures_of
from adamcb.lab.results.statistics import mean_and_spread
from adamcb.lab.results.summary import complete_curves, curves_of

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "adamcb",  # the same figure is the same file
}


def draw_comparison(folder: Path, results: Sequence[Row], config: dict[str, Any]) -> list[Path]:
    """Write epochs.png, epochs.svg, seconds.png and seconds.svg: losses and metrics, in training and test."""
    written, measures = [], measures_of(config)
    rows = len(measures) // 2
    with matplotlib.rc_context(STYLE):
        for horizontal in ("epochs", "seconds"):
            figure = Figure(figsize=(9.0, 3.3 * rows), layout="constrained")
            for axes, measure in zip(figure.subplots(rows, 2).flat, measures, strict=True):
                draw_panel(axes, results, config, measure, horizontal)
            _finish(figure, config, title_of(config), config["notes"])
            written += save(figure, folder, horizontal)
    return written


def draw_paper_figure(
    folder: Path, name: str, title: str, parts: Sequence[tuple[Sequence[Row], dict[str, Any]]], notes: Sequence[str]
) -> list[Path]:
    """Write a figure laid out as the paper's: a column for each dataset, training loss above test loss.

    Of a single dataset they are side by side.
    """
    columns = len(parts)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * columns, 6.6) if columns > 1 else (9.0, 4.4), layout="constrained")
        shape = (2, columns) if columns > 1 else (1, 2)
        grid = figure.subplots(*shape, squeeze=False).reshape(2, columns)
        for column, (results, config) in enumerate(parts):
            losses = [measure for measure in measures_of(config) if measure.is_loss]
            for axes, measure in zip(grid[:, column], losses, strict=True):
                draw_panel(axes, results, config, measure, "epochs")
                axes.set_title(f"{config['dataset']}: {measure.title}")
        _finish(figure, parts[0][1], title, notes)
        return save(figure, folder, name)


def draw_panel(axes: Axes, results: Sequence[Row], config: dict[str, Any], measure: Measure, horizontal: str) -> None:
    """Draw one measure of all methods: on a logarithmic axis where it spans much, or in percent."""
    scale = 100.0 if measure.percent else 1.0
    drawn: list[float] = []
    for method in config["methods"]:
        look = look_of(method, config["methods"])
        across, mean, spread = _curve(results, method, measure.name, horizontal)
        drawn += list(mean if measure.is_loss else mean[1:])
        low, high = scale * (mean - spread), scale * (mean + spread)
        if measure.is_loss:
            low = np.maximum(low, 0.5 * mean)  # a logarithmic axis has no place for 0
        axes.fill_between(across, low, high, color=look.color, alpha=0.15, linewidth=0)
        axes.plot(
            across,
            scale * mean,
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            markersize=4.5,
            markevery=max(1, math.ceil(len(mean) / 12)),
            linewidth=1.5,
            label=_label(results, config, method),
        )
    axes.set_title(measure.title + (", %" if measure.percent else ""))
    axes.set_xlabel("epoch" if horizontal == "epochs" else "seconds of training (processor time)")
    _scale_vertical(axes, measure, drawn)
    _draw_lost(axes, results, config, measure, horizontal)
    if horizontal == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _label(results: Sequence[Row], config: dict[str, Any], method: str) -> str:
    """Return what the legend says of a method, with a word on runs that diverged."""
    runs = [run for run in curves_of(results) if run[0] == method]
    lost = len(runs) - sum(run in complete_curves(results) for run in runs)
    return config["labels"][method] + (f" ({lost} of {len(runs)} diverged)" if lost else "")


def _draw_lost(axes: Axes, results: Sequence[Row], config: dict[str, Any], measure: Measure, horizontal: str) -> None:
    """Draw the runs that diverged as thin lines that end in a cross, at the edge where they left the picture."""
    scale, complete = 100.0 if measure.percent else 1.0, complete_curves(results)
    low, high = axes.get_ylim() if complete else (-math.inf, math.inf)
    for run, rows in curves_of(results).items():
        if run in complete:
            continue
        color = look_of(run[0], config["methods"]).color
        across = [row[_column(horizontal)] for row in rows]
        values = [scale * row[measure.name] for row in rows]
        axes.plot(across, values, color=color, linewidth=0.8, alpha=0.7)
        end = min(max(values[-1], low), high)
        axes.plot(across[-1:], [end], color=color, marker="x", markersize=8, markeredgewidth=2, clip_on=False)
    if complete:
        axes.set_ylim(low, high)


def _scale_vertical(axes: Axes, measure: Measure, drawn: Sequence[float]) -> None:
    if not drawn:
        return
    least, most = min(drawn), max(drawn)
    if not measure.percent and not measure.higher_is_better and most > 5.0 * least > 0.0:
        axes.set_yscale("log")
        space = (most / least) ** 0.05
        axes.set_ylim(least / space, most * space)  # not to where a run that diverged went
        # Powers of ten alone would be two marks, or one.
        few = most < 1000.0 * least
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    elif measure.higher_is_better or measure.percent:
        # The leap from guessing would press all that follows into a line.
        scale = 100.0 if measure.percent else 1.0
        space = 0.08 * (most - least) or 0.01
        axes.set_ylim(scale * max(0.0, least - space), scale * (most + space))


def _column(horizontal: str) -> str:
    return "epoch" if horizontal == "epochs" else "seconds"


def _curve(results: Sequence[Row], method: str, measure: str, horizontal: str) -> tuple[np.ndarray, ...]:
    """Return where, mean and standard deviation over the seeds that did not diverge."""
    runs = [rows for (name, _), rows in complete_curves(results).items() if name == method]
    length = min((len(rows) for rows in runs), default=0)
    across = np.array([[row[_column(horizontal)] for row in rows[:length]] for rows in runs], dtype=float)
    values = np.array([[row[measure] for row in rows[:length]] for rows in runs], dtype=float)
    if not values.size:
        return np.empty(0), np.empty(0), np.empty(0)
    mean, spread = np.array([mean_and_spread(at_once) for at_once in values.T.tolist()]).T
    return across.mean(axis=0), mean, np.nan_to_num(spread)  # one run has a line without a band


def _finish(figure: Figure, config: dict[str, Any], title: str, notes: Sequence[str]) -> None:
    _add_legend(figure)
    seeds = len(config["seeds"])
    band = f"mean and one standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lines = [title, f"{band}, batch size {config['batch_size']}, learning rate {config['lr'] or 'of each method'}"]
    letters = int(11.0 * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.fill(line, letters) for line in [*lines, *notes]), fontsize=10)


def _add_legend(figure: Figure) -> None:
    """Put the legend below, in as many columns as fit; names that do not fit at all are broken."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    letters = int(11.0 * figure.get_figwidth())
    labels = [textwrap.fill(label, letters - 12) for label in labels]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    columns = max(1, min(4, letters // (longest + 8)))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows) if labels else 1
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))  # the panels keep their height
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=4.0)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG, each whole or not at all."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once for both
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        with whole_file(path) as place:
            # Without a date the same figure is the same file.
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(place, dpi=150, metadata=metadata)
    return paths
