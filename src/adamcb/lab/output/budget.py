"""The report of `adamcb bench budget`: one Markdown page and a figure, from the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adamcb.lab.output.figures import STYLE, save
from adamcb.lab.output.looks import look_of
from adamcb.lab.output.markdown import cell, table
from adamcb.lab.results.budget import (
    COLUMNS,
    HELD_OUT,
    baselines_of,
    best_lrs,
    difference,
    estimates,
    headline_of,
    overall,
    reported,
)
from adamcb.lab.results.columns import Row
from adamcb.lab.results.files import write_text
from adamcb.lab.results.statistics import mean_and_spread
from adamcb.lab.runs.budget import LABELS

INTRODUCTION = """# Quality against budget

Every run goes to the end of its own cosine decay. Ratios (samples, processor seconds of one thread, losses) are to Adam
with the whole budget and the same seed, as geometric means; below 1 is less. Differences of the metric are to the same
run; above 0 is better. Brackets and ± are 95 % t-intervals over paired seeds. A sample is one forward and one backward
pass. Learning rates are the tasks' own unless a column of the rows says otherwise. Seconds are rough: runs went one
after another, beside whatever else the machine did.
"""


def write_report(rows_path: Path, rows: Sequence[Row]) -> list[Path]:
    """Write the page and the figure beside the rows, and return where they are."""
    kept = reported(rows)
    tasks = [task for task in dict.fromkeys(row["task"] for row in kept) if baselines_of(kept, task)]
    parts = [INTRODUCTION, *_overall(kept, tasks)]
    for task in tasks:
        parts += [f"## {task}", _task_table([row for row in kept if row["task"] == task], task)]
    parts += _tuning([row for row in rows if row["seed"] == HELD_OUT])
    page = rows_path.with_suffix(".md")
    write_text(page, "\n\n".join(parts) + "\n")
    return [page, *(draw(rows_path, kept, tasks) if tasks else [])]


def _methods(rows: Sequence[Row]) -> list[str]:
    return [name for name in LABELS if any(row["method"] == name for row in rows)]


def _fractions(rows: Sequence[Row]) -> list[float]:
    return sorted({row["fraction"] for row in rows}, reverse=True)


def _overall(rows: Sequence[Row], tasks: Sequence[str]) -> list[str]:
    """Return the table of means over tasks, of the methods that were run on all of them."""
    lines = [["budget", "method", *(column.title for column in COLUMNS.values())]]
    for fraction in _fractions(rows):
        for method in _methods(rows):
            found = overall(rows, method, fraction, tasks)
            if found is not None:
                cells = [cell(found[name], column) for name, column in COLUMNS.items()]
                lines.append([f"{100 * fraction:g} %", LABELS[method], *cells])
    return [f"## Geometric mean over {len(tasks)} tasks", table(lines)] if len(tasks) > 1 and len(lines) > 1 else []


def _task_table(rows: Sequence[Row], task: str) -> str:
    measure = headline_of(rows)
    columns = {**COLUMNS, "metric": difference(measure)}
    baselines = baselines_of(rows, task)
    lines = [["budget", "method", "seeds", *(column.title for column in columns.values()), measure.title]]
    for fraction in _fractions(rows):
        for method in _methods(rows):
            own = [row for row in rows if (row["method"], row["fraction"]) == (method, fraction)]
            found = estimates(own, baselines, columns)
            if found:
                cells = [cell(found[name], column) for name, column in columns.items()]
                level = _level([row[measure.name] for row in own if not row["diverged"]], measure.percent)
                lines.append([f"{100 * fraction:g} %", LABELS[method], str(len(own)), *cells, level])
    return table(lines)


def _tuning(rows: Sequence[Row]) -> list[str]:
    """Return the table of the learning rates that were tried with the held-out seed; nothing if there are none."""
    chosen = best_lrs(rows)
    lines = [["task", "learning rate", "method", "samples", "training loss", "test score", "chosen"]]
    for row in sorted(rows, key=lambda row: (row["task"], row["lr"], list(LABELS).index(row["method"]))):
        own = [other for other in rows if (other["task"], other["lr"]) == (row["task"], row["lr"])]
        adam = baselines_of(own, row["task"]).get(HELD_OUT)
        if adam is None or row["diverged"]:
            continue
        measure = headline_of(own)
        ratios = [f"{math.exp(COLUMNS[name].value(row, adam)):.2f}" for name in ("samples", "train_loss")]
        is_best = chosen[row["task"], row["method"]] == row["lr"]
        score = _level([row[measure.name]], measure.percent)
        lines.append([row["task"], f"{row['lr']:g}", LABELS[row["method"]], *ratios, score, "yes" if is_best else ""])
    words = f"Seed {HELD_OUT}, which no other table has. Ratios are to Adam with the same learning rate."
    return ["## Learning rates", words, table(lines)] if len(lines) > 1 else []


def _level(values: Sequence[float], percent: bool) -> str:
    mean, _ = mean_and_spread(values)
    return f"{100 * mean:.2f} %" if percent else f"{mean:.4g}"


def draw(rows_path: Path, rows: Sequence[Row], tasks: Sequence[str]) -> list[Path]:
    """Write a figure: for every task the metric and the training loss against samples, as shares of Adam's."""
    methods = _methods(rows)  # of all tasks, so that a method has one color everywhere
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.0 * len(tasks) + 0.8), layout="constrained")
        grid = figure.subplots(len(tasks), 2, squeeze=False)
        for line, task in zip(grid, tasks, strict=True):
            own = [row for row in rows if row["task"] == task and not row["diverged"]]
            measure = headline_of(own)
            _panel(line[0], own, task, measure.name, f"{task}: {measure.title}", methods)
            _panel(line[1], own, task, "train_loss", f"{task}: training loss", methods)
            line[1].set_yscale("log")
        legends = [axes.get_legend_handles_labels() for axes in grid.flat]
        shown = {label: handle for handles, labels in legends for handle, label in zip(handles, labels, strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, handlelength=3.5)
        figure.suptitle("At the end of a decayed schedule, against samples ÷ Adam's with the whole budget", fontsize=10)
        return save(figure, rows_path.parent, rows_path.stem)


def _panel(axes: Axes, rows: Sequence[Row], task: str, name: str, title: str, methods: Sequence[str]) -> None:
    baselines = baselines_of(rows, task)
    for method in methods:
        points: dict[float, list[tuple[float, float]]] = {}
        for row in rows:
            if row["method"] == method and row["seed"] in baselines:
                share = row["samples"] / baselines[row["seed"]]["samples"]
                points.setdefault(row["fraction"], []).append((share, row[name]))
        if points:
            centers: Any = np.array([np.mean(points[fraction], axis=0) for fraction in sorted(points)])
            look = look_of(method, methods)
            axes.plot(centers[:, 0], centers[:, 1], color=look.color, linestyle=look.dashes, marker=look.marker,
                      markersize=4.5, linewidth=1.5, label=LABELS[method])  # fmt: skip
    axes.set_title(title)
    axes.set_xlabel("samples")
