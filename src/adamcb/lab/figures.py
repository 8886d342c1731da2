"""Curves on paper: means over seeds with a band of one standard deviation, as PNG and SVG.

A method has the same look in every figure. Colors are those of Okabe and Ito, which the color-blind can tell apart;
dashes and markers differ too, so that a black-and-white print will do.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from adamcb.lab.results import MEASURES, Row, whole_file
from adamcb.lab.tables import TITLES, curves_of


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    color: str
    dashes: Any
    marker: str


LOOKS = {
    "adam": Look("#000000", "-", "o"),
    "amsgrad": Look("#999999", (0, (6, 2)), "s"),
    "adamx": Look("#56B4E9", (0, (1, 1)), "^"),
    "adambs": Look("#E69F00", (0, (4, 1, 1, 1)), "v"),
    "adambs-corrected": Look("#D55E00", (0, (3, 1, 1, 1, 1, 1)), "D"),
    "adamcb": Look("#0072B2", (0, (5, 1)), "P"),
    "adamcb-listing": Look("#CC79A7", (0, (2, 2)), "X"),
    "adamcb-scale-free": Look("#009E73", "-", "*"),
    "last-norm": Look("#E69F00", (0, (6, 2)), "d"),
    "last-loss": Look("#0072B2", (0, (1, 1)), "H"),
    "vrb": Look("#999999", (0, (3, 1, 1, 1)), "8"),
    "infobatch": Look("#CC79A7", (0, (6, 2)), "x"),
    "selective-backprop": Look("#D55E00", (0, (1, 1)), "+"),
    "presampling": Look("#56B4E9", (0, (5, 1)), "1"),
}
_SPARE = (
    Look("#CC79A7", "-", "h"),
    Look("#E69F00", (0, (6, 2)), "<"),
    Look("#0072B2", (0, (1, 1)), ">"),
    Look("#D55E00", "-", "p"),
)
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


class _PlainNumbers(LogFormatter):
    """Writes 0.2 where its parent would write 2e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def look_of(method: str, methods: Sequence[str]) -> Look:
    """Return how a method is drawn; one from a user's file takes a spare look."""
    strangers = [name for name in methods if name not in LOOKS]
    return LOOKS[method] if method in LOOKS else _SPARE[strangers.index(method) % len(_SPARE)]


def draw_comparison(folder: Path, results: Sequence[Row], config: dict[str, Any]) -> list[Path]:
    """Write epochs.png, epochs.svg, seconds.png and seconds.svg: loss and accuracy, in training and test."""
    written = []
    with matplotlib.rc_context(STYLE):
        for horizontal in ("epochs", "seconds"):
            figure = Figure(figsize=(9.0, 6.6), layout="constrained")
            for axes, measure in zip(figure.subplots(2, 2).flat, MEASURES, strict=True):
                draw_panel(axes, results, config, measure, horizontal)
            _finish(figure, config, f"{config['model']} on {config['dataset']}", config["notes"])
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
            for axes, measure in zip(grid[:, column], ("train_loss", "test_loss"), strict=True):
                draw_panel(axes, results, config, measure, "epochs")
                axes.set_title(f"{config['dataset']}: {TITLES[measure]}")
        _finish(figure, parts[0][1], title, notes)
        return save(figure, folder, name)


def draw_panel(axes: Axes, results: Sequence[Row], config: dict[str, Any], measure: str, horizontal: str) -> None:
    """Draw one measure of all methods: losses on a logarithmic axis where they span much, accuracies in percent."""
    is_loss = measure.endswith("loss")
    scale = 1.0 if is_loss else 100.0
    drawn: list[float] = []
    for method in config["methods"]:
        across, mean, spread = _curve(results, method, measure, horizontal)
        if not len(mean):
            continue
        look = look_of(method, config["methods"])
        drawn += list(mean if is_loss else mean[1:])
        low, high = scale * (mean - spread), scale * (mean + spread)
        if is_loss:
            low = np.maximum(low, 0.5 * mean)  # a logarithmic axis has no room for 0
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
            label=config["labels"][method],
        )
    axes.set_title(TITLES[measure] + ("" if is_loss else ", %"))
    axes.set_xlabel("epoch" if horizontal == "epochs" else "seconds of training")
    if is_loss and drawn and max(drawn) > 5.0 * min(drawn):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(_PlainNumbers(minor_thresholds=(1.0, 0.4)))
    elif drawn and not is_loss:
        # The leap from guessing would press all that follows into a line.
        worst, best = 100.0 * min(drawn), 100.0 * max(drawn)
        axes.set_ylim(max(0.0, worst - 1.0 - 0.05 * (best - worst)), best + 0.5 + 0.05 * (best - worst))
    if horizontal == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _curve(results: Sequence[Row], method: str, measure: str, horizontal: str) -> tuple[np.ndarray, ...]:
    """Return where, mean and standard deviation over seeds, up to where the first run ended."""
    runs = [rows for (name, _), rows in curves_of(results).items() if name == method]
    length = min((len(rows) for rows in runs), default=0)
    column = "epoch" if horizontal == "epochs" else "seconds"
    across = np.array([[row[column] for row in rows[:length]] for rows in runs], dtype=float)
    values = np.array([[row[measure] for row in rows[:length]] for rows in runs], dtype=float)
    if not values.size:
        return np.empty(0), np.empty(0), np.empty(0)
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(length)
    return across.mean(axis=0), values.mean(axis=0), spread


def _finish(figure: Figure, config: dict[str, Any], title: str, notes: Sequence[str]) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = math.ceil(len(labels) / math.ceil(len(labels) / 4)) if labels else 1
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=4.0)
    seeds = len(config["seeds"])
    band = f"mean and one standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lines = [title, f"{band}, batch size {config['batch_size']}, learning rate {config['lr'] or 'of each method'}"]
    letters = int(11.0 * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.fill(line, letters) for line in [*lines, *notes]), fontsize=10)


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
