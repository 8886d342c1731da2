"""The tables and figures of time-to-loss: one Markdown page, all runs as CSV, and a figure for every condition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adamcb.lab.output.figures import STYLE, save
from adamcb.lab.output.looks import COLORS
from adamcb.lab.output.markdown import cell, table
from adamcb.lab.results import Row, write_csv, write_text
from adamcb.lab.results.statistics import Column, Estimate, combine, estimate, log_ratio
from adamcb.lab.results.summary import BASELINE

_MARKERS = "os^vDPX<"


def _ratio(name: str, to: str, otherwise: str = "") -> Callable[[Row], float]:
    """Return log(name/to) of a record, with the field `otherwise` where `name` is None."""

    def value(record: Row) -> float:
        number = record[name] if record[name] is not None else record[otherwise]
        return log_ratio(number, record[to])

    return value


COLUMNS = {
    "seconds": Column(
        "seconds to Adam's training loss",
        _ratio("seconds_to_train_loss", "seconds", "own_seconds"),
        reached="seconds_to_train_loss",
    ),
    "steps": Column("steps to it", _ratio("steps_to_train_loss", "steps", "steps"), reached="steps_to_train_loss"),
    "test seconds": Column(
        "seconds to Adam's test loss",
        _ratio("seconds_to_test_loss", "seconds", "own_seconds"),
        reached="seconds_to_test_loss",
    ),
    "final": Column("training loss at the end", _ratio("train_loss", "adam_train_loss")),
    "equal": Column("training loss at equal seconds", _ratio("train_loss_at_equal_seconds", "adam_train_loss")),
    "final test": Column("test loss at the end", _ratio("test_loss", "adam_test_loss")),
    "test": Column("test loss at equal seconds", _ratio("test_loss_at_equal_seconds", "adam_test_loss")),
    "best test": Column("best test loss", _ratio("best_test_loss", "adam_best_test_loss")),
    "accuracy": Column(
        "test accuracy at the end, points",
        lambda record: 100.0 * (record["test_accuracy"] - record["adam_test_accuracy"]),
        is_ratio=False,
    ),
    "equal accuracy": Column(
        "test accuracy at equal seconds, points",
        lambda record: 100.0 * (record["test_accuracy_at_equal_seconds"] - record["adam_test_accuracy"]),
        is_ratio=False,
    ),
}
Estimates = dict[str, Estimate]


def estimates(records: Sequence[Row]) -> Estimates:
    """Return all columns of the runs of one method on one task, those that diverged left out."""
    sound = [record for record in records if not record["diverged"]]
    if not sound:
        return {}
    return {
        name: estimate(
            [column.value(record) for record in sound],
            at_least=bool(column.reached) and any(record[column.reached] is None for record in sound),
        )
        for name, column in COLUMNS.items()
    }


def firsts(by_method: Mapping[str, Sequence[Row]]) -> set[str]:
    """Return the method that reaches Adam's training loss first, and those that cannot be told from it.

    They are those whose 95 % interval of the difference in logarithms, over the seeds they share with it, holds 0.
    Where some have more seeds than one, a single run says too little to be among them.
    """
    column = COLUMNS["seconds"]
    values = {
        method: {record["seed"]: column.value(record) for record in records}
        for method, records in by_method.items()
        if records and all(not record["diverged"] and record[column.reached] is not None for record in records)
    }
    if any(len(seeds) > 1 for seeds in values.values()):
        values = {method: seeds for method, seeds in values.items() if len(seeds) > 1}
    if not values:
        return set()
    best = min(values, key=lambda method: estimate(list(values[method].values())).mean)
    return {best} | {method for method in values if method != best and _alike(values[method], values[best])}


def _alike(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    differences = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    if len(differences) < 2:
        return False
    difference = estimate(differences)
    return abs(difference.mean) <= difference.margin


def write_report(out: Path, records: Sequence[Row], labels: Mapping[str, str], clock: str) -> list[Path]:
    """Write time-to-loss.md, time-to-loss.csv and the figures, and return where they are."""
    paths = [out / "time-to-loss.md", out / "time-to-loss.csv"]
    sections = [_introduction(records, clock)]
    for condition in sorted({record["condition"] for record in records}):
        part = [record for record in records if record["condition"] == condition]
        methods = sorted({record["method"] for record in part}, key=_rank(list(labels)))
        grouped = {
            task: {method: [r for r in part if (r["task"], r["method"]) == (task, method)] for method in methods}
            for task in sorted({record["task"] for record in part})
        }
        names = {method: labels.get(method, method) for method in methods}
        sections += [f"## {condition}", _overall(grouped, names), *_by_task(grouped, names)]
        paths += draw(out, condition, grouped, names, clock)
    write_text(paths[0], "\n\n".join(sections) + "\n")
    write_csv(paths[1], list(records[0]) if records else ["task"], records)
    return paths


def _rank(order: list[str]) -> Callable[[str], tuple[int, str]]:
    return lambda method: (order.index(method) if method in order else len(order), method)


def _introduction(records: Sequence[Row], clock: str) -> str:
    seeds = len({record["seed"] for record in records})
    kind = "processor time of one thread" if clock == "cpu" else "real time"
    return (
        f"# Time to loss\n\nEvery number is against Adam with the same schedule, labels and seed: a ratio (geometric "
        f"mean), or a difference of accuracies in points. Times are {kind}, without evaluations; 1 is all that Adam "
        f"took. Adam's own row tells when it first had the loss that it ended with. In brackets and after ±: 95 % "
        f"t-intervals over at most {seeds} paired seeds. ≥: some run had not got there when it ended, so this is a "
        f"lower bound. At equal seconds: what a method had when Adam ended, or at its own end if that came first. "
        f"Best test loss: the least of all evaluations, against Adam's least. First: reached Adam's training loss "
        f"first, or cannot be told from the first (the interval of the paired difference holds 0); such are bold."
    )


Grouped = dict[str, dict[str, list[Row]]]


def _overall(grouped: Grouped, names: Mapping[str, str]) -> str:
    """Return the table of geometric means over tasks."""
    winners = [firsts(by_method) for by_method in grouped.values()]
    lines = [["geometric mean over tasks", "tasks", "first", *(column.title for column in COLUMNS.values())]]
    for method, label in names.items():
        tasks = [found for by_method in grouped.values() if (found := estimates(by_method[method]))]
        if tasks:
            cells = [cell(combine([task[name] for task in tasks]), column) for name, column in COLUMNS.items()]
            lines.append([label, str(len(tasks)), str(sum(method in winner for winner in winners)), *cells])
    return table(lines)


def _by_task(grouped: Grouped, names: Mapping[str, str]) -> list[str]:
    """Return a heading and a table for every task, with what Adam ended at."""
    parts = []
    for task, by_method in grouped.items():
        winners = firsts(by_method)
        lines = [["method", "seeds", *(column.title for column in COLUMNS.values())]]
        for method, label in names.items():
            found, count = estimates(by_method[method]), len(by_method[method])
            if found:
                cells = [cell(found[name], column) for name, column in COLUMNS.items()]
                sound = sum(not record["diverged"] for record in by_method[method])
                seeds = str(count) if sound == count else f"{sound} ({count - sound} diverged)"
                lines.append([f"**{label}**" if method in winners else label, seeds, *cells])
            elif count:
                lines.append([f"{label} (diverged)", str(count), *["–"] * len(COLUMNS)])
        parts += [f"### {task}", _adam_in_words(by_method[BASELINE]), table(lines)]
    return parts


def _adam_in_words(records: Sequence[Row]) -> str:
    seconds, train, test, accuracy = (
        estimate([record[name] for record in records])
        for name in ("seconds", "adam_train_loss", "adam_test_loss", "adam_test_accuracy")
    )
    return (
        f"Adam ended after {records[0]['steps']} steps and {seconds.mean:.1f} s at a training loss of "
        f"{train.mean:.4g}, a test loss of {test.mean:.4g} and a test accuracy of {100 * accuracy.mean:.2f} %."
    )


def draw(out: Path, condition: str, grouped: Grouped, names: Mapping[str, str], clock: str) -> list[Path]:
    """Write a figure: for every method a mark for each task, hollow if it is a lower bound; and the geometric mean.

    Methods that were not run on all tasks have no mean: it would be of other tasks than those beside it.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 1.6 + 0.5 * len(names)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name in zip(panels, ("seconds", "test seconds"), strict=True):
            _draw_panel(axes, name, grouped, names)
        panels[0].set_yticks(range(len(names)), names.values())
        panels[0].invert_yaxis()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        kind = "processor time" if clock == "cpu" else "real time"
        figure.suptitle(
            f"Time to Adam's final loss, {condition}: {kind} ÷ Adam's. Hollow: at least. Bars: mean of all tasks, 95 %",
            fontsize=10,
        )
        return save(figure, out, f"time-to-loss-{condition}")


def _draw_panel(axes: Axes, name: str, grouped: Grouped, names: Mapping[str, str]) -> None:
    axes.set_xscale("log", base=2)
    axes.axvline(1.0, color="#000000", linewidth=0.8)
    found = {task: {method: estimates(records) for method, records in group.items()} for task, group in grouped.items()}
    for number, (task, by_method) in enumerate(found.items()):
        color, marker = COLORS[number % len(COLORS)], _MARKERS[number % len(_MARKERS)]
        marks = [(line, by_method[method][name]) for line, method in enumerate(names) if by_method[method]]
        for at_least in (False, True):  # lower bounds are hollow
            axes.plot(
                [math.exp(mark.mean) for _, mark in marks if mark.at_least == at_least],
                [line for line, mark in marks if mark.at_least == at_least],
                linestyle="none",
                color=color,
                marker=marker,
                markersize=5,
                alpha=0.8,
                zorder=3,
                fillstyle="none" if at_least else "full",
                label=None if at_least else task,
            )
    for line, method in enumerate(names):
        tasks = [by_method[method][name] for by_method in found.values() if by_method[method]]
        if tasks and len(tasks) == len(found):
            _draw_mean(axes, line, combine(tasks))
    axes.set_title(COLUMNS[name].title)
    axes.xaxis.set_major_formatter("{x:g}")


def _draw_mean(axes: Axes, line: int, mean: Estimate) -> None:
    """Draw a mean over all tasks with its interval; a lower bound as an arrow."""
    center = math.exp(mean.mean)
    if mean.at_least:
        axes.plot(center, line, color="#D55E00", marker=">", markersize=9, fillstyle="none")
        return
    margin = 0.0 if math.isnan(mean.margin) else mean.margin
    ends = [math.exp(mean.mean - margin), math.exp(mean.mean + margin)]
    axes.plot(ends, [line, line], color="#D55E00", linewidth=6, alpha=0.35, solid_capstyle="butt")
    axes.plot([center] * 2, [line - 0.3, line + 0.3], color="#D55E00", linewidth=2)
