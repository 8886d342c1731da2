"""Draw the figures of docs/evidence.md from the rows: quality against samples, seconds, and rare events.

python -m benchmarks.claims
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adamcb.lab.results import Row, read_csv
from adamcb.lab.results.budget import COLUMNS, baselines_of, difference, estimates, headline_of, reported
from benchmarks.picture import OURS, STYLE, TASKS

ROWS = Path("docs") / "evidence"
FIGURES = Path("docs") / "figures"
# Method: label, color, marker.
BUDGETS = {
    "adam": ("Adam, shuffled batches", "#000000", "o"),
    "small-batches": ("Adam, smaller random batches", "#E69F00", "^"),
    "infobatch": ("Adam, InfoBatch", "#CC79A7", "s"),
    OURS: ("Adam, adamcb's batches", "#009E73", "D"),
}
RARE = {
    "adam": ("shuffled batches", "#000000", "o"),
    "small-batches": ("smaller random batches", "#E69F00", "^"),
    "balanced-sampler": ("balanced sampler", "#0072B2", "v"),
    "weighted-loss": ("weighted loss", "#CC79A7", "s"),
    OURS: ("adamcb's smaller batches", "#009E73", "D"),
}
RARE_TASKS = {"kddcup99": "KDD Cup 1999", "protein": "protein homology", "rare-events": "rare-events (scikit-learn)"}
COLUMNS_OF_PANELS = 3


def draw_quality(rows: Sequence[Row]) -> Figure:
    """Return the figure of quality against samples: a panel for each task that was run with several budgets."""
    tasks = [task for task in TASKS if len({row["fraction"] for row in rows if _is(row, task, OURS)}) > 1]
    lines = math.ceil(len(tasks) / COLUMNS_OF_PANELS)
    figure = Figure(figsize=(8.6, 2.2 * lines + 0.6), layout="constrained", facecolor="white")
    panels = figure.subplots(lines, COLUMNS_OF_PANELS, squeeze=False).ravel()
    for axes, task in zip(panels, tasks, strict=False):
        _draw_budgets(axes, rows, task)
    for axes in panels[max(0, len(tasks) - COLUMNS_OF_PANELS) : len(tasks)]:  # the last one of each column
        axes.set_xlabel("samples ÷ Adam's")
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    figure.supylabel("test score − Adam's (points)", fontsize="medium")
    _add_legend(figure, BUDGETS)
    return figure


def _draw_budgets(axes: Axes, rows: Sequence[Row], task: str) -> None:
    """Draw how each method ended on a task with each budget, as the mean over seeds."""
    own = [row for row in rows if row["task"] == task]
    measure = headline_of(own)
    scale = 1.0 if measure.percent else 100.0  # a precision, in points
    columns = {"samples": COLUMNS["samples"], "score": difference(measure)}
    axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
    for method, (_, color, marker) in BUDGETS.items():
        points = []
        for budget in sorted({row["fraction"] for row in own if row["method"] == method}):
            whole = [row for row in own if (row["method"], row["fraction"]) == (method, budget)]
            found = estimates(whole, baselines_of(own, task), columns)
            points.append((math.exp(found["samples"].mean), scale * found["score"].mean))
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=4, linewidth=1.2)
    axes.set(xlim=(0, 1.05), xticks=(0, 0.5, 1), xticklabels=("0", "50 %", "100 %"))
    axes.set_title(TASKS[task], fontsize="medium")


def read_seconds(path: Path) -> list[Row]:
    """Return the rows of `python -m benchmarks.seconds`, whose samples are a share of Adam's."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: cell if name == "task" else float(cell) for name, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def draw_seconds(rows: Sequence[Row]) -> Figure:
    """Return the figure of seconds: chosen batches, and random ones of the same sizes, as shares of Adam's time."""
    found = {
        task: [_ratio(row for row in rows if row["task"] == task)[name] for name in ("adamcb", "random", "samples")]
        for task in {row["task"] for row in rows}
    }
    tasks = sorted(found, key=lambda task: -found[task][0])
    figure = Figure(figsize=(8.6, 0.32 * len(tasks) + 1.1), layout="constrained", facecolor="white")
    axes = figure.subplots()
    looks = {
        "adamcb's batches": ("#009E73", "D"),
        "random batches of the same sizes": ("#E69F00", "^"),
        "samples, as a share of Adam's": ("#555555", "|"),
    }
    for number, (label, (color, marker)) in enumerate(looks.items()):
        shares = [found[task][number] for task in tasks]
        axes.plot(shares, range(len(tasks)), marker, color=color, label=label, markersize=7 if marker == "|" else 5.5)
    axes.axvline(1, color="#000000", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(tasks)), [TASKS[task] for task in tasks])
    axes.set(xlim=(0, 1.15), ylim=(-0.6, len(tasks) - 0.4), title="Processor seconds of a training ÷ Adam's")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _ratio(rows: Iterable[Row]) -> Mapping[str, float]:
    """Return what each loop took of Adam's seconds, and the share of its samples: means over seeds."""
    own = list(rows)
    shares = {
        name: statistics.geometric_mean(row[f"{name}_seconds"] / row["adam_seconds"] for row in own)
        for name in ("adamcb", "random")
    }
    return {**shares, "samples": statistics.fmean(row["samples"] for row in own)}


def draw_rare(rows: Sequence[Row]) -> Figure:
    """Return the figure of rare events: log loss against average precision, a marker for each method and task."""
    figure = Figure(figsize=(8.6, 2.9), layout="constrained", facecolor="white")
    for axes, (task, title) in zip(figure.subplots(1, len(RARE_TASKS)), RARE_TASKS.items(), strict=True):
        for method, (_, color, marker) in RARE.items():
            own = [row for row in rows if _is(row, task, method)]
            loss = statistics.fmean(
                row["test_loss"] if row["test_log_loss"] is None else row["test_log_loss"] for row in own
            )
            precision = statistics.fmean(row["test_average_precision"] for row in own)
            axes.plot([loss], [precision], marker, color=color, markersize=7)
        axes.set_xscale("log")
        axes.minorticks_off()
        shown = sorted({tick for tick in (0.005, 0.01, 0.02, 0.04, 0.1) if _within(tick, axes.get_xlim())})
        axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("test log loss (left is better)")
    figure.axes[0].set_ylabel("average precision (up is better)")
    _add_legend(figure, RARE)
    return figure


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _is(row: Row, task: str, method: str) -> bool:
    return (row["task"], row["method"]) == (task, method)


def _add_legend(figure: Figure, methods: Mapping[str, tuple[str, str, str]]) -> None:
    """Name the methods below all panels."""
    axes = figure.axes[0]
    handles = [
        axes.plot([], [], color=color, marker=marker, label=label, linestyle="none")[0]
        for label, color, marker in methods.values()
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(methods),
        columnspacing=1,
        handletextpad=0.2,
        fontsize="small",
        frameon=False,
    )


def main() -> None:
    """Read the rows and write the figures."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    with matplotlib.rc_context(STYLE):  # the same figure is the same file
        for name, figure in {
            "quality": draw_quality(reported(read_csv(options.rows / "budget.csv"))),
            "seconds": draw_seconds(read_seconds(options.rows / "seconds.csv")),
            "rare-events": draw_rare(read_csv(options.rows / "rare-events.csv")),
        }.items():
            path = options.out / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            print(path)


if __name__ == "__main__":
    main()
