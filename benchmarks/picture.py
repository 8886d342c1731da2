"""Draw the picture of the README from the rows of `adamcb bench budget`, and the picture of how a batch is drawn.

python -m benchmarks.picture
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adamcb.lab.results import Row, read_csv
from adamcb.lab.results.budget import COLUMNS, baselines_of, difference, estimates, headline_of, reported

ROWS = Path("docs") / "evidence" / "budget.csv"
FIGURE = Path("docs") / "figures" / "samples.svg"
OURS = "adamcb-smaller"
# Method: label, color, marker.
INK, GRAY = "#24292f", "#8c959f"
METHODS = {
    "adam": ("Adam", INK, "o"),
    "infobatch": ("Adam + InfoBatch", "#b1578a", "s"),
    OURS: ("Adam + adamcb", "#00805d", "D"),
}
UNIT, DUE, CUT = "#e8f3ee", "#009e73", "#d55e00"  # of the queue
# On a dark page the same pictures have these colors. They have no background of their own.
DARK = {INK: "#e6edf3", GRAY: "#7d8590", "#b1578a": "#e59ac5", "#00805d": "#2fc295"}
DARK |= {UNIT: "#16382d", DUE: "#2fc295", CUT: "#ff9b57"}
TASKS = {
    "protein": "protein, 0.9 % positives, MLP (average precision)",
    "mnist-mlp": "MNIST, MLP",
    "mnist-mlp-wrong-labels": "MNIST, MLP, 10 % wrong labels",
    "mnist-cnn": "MNIST, CNN",
    "mnist-logistic": "MNIST, logistic regression",
    "fashion-mnist-mlp": "Fashion-MNIST, MLP",
    "fashion-mnist-mlp-wrong-labels": "Fashion-MNIST, MLP, 10 % wrong labels",
    "fashion-mnist-cnn": "Fashion-MNIST, CNN",
    "fashion-mnist-cnn-augmented": "Fashion-MNIST, CNN, augmented",
    "digits-mlp": "digits, MLP",
    "cifar10-mlp": "CIFAR-10, MLP",
    "shakespeare": "Shakespeare, small GPT (perplexity)",
}
STYLE = {
    "font.size": 9,
    "svg.hashsalt": "adamcb",
    "svg.fonttype": "path",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


INKED = {**dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color"), INK), "axes.edgecolor": GRAY}


class Reading(NamedTuple):
    """The share of Adam's samples, and by how many points the test score differs from Adam's, give or take.

    An interval of fewer than three seeds says nothing: its margin is NaN. `other` names a score that has no points.
    """

    share: float
    points: float
    margin: float
    other: str = ""


def read(rows: Sequence[Row], task: str, method: str) -> Reading | None:
    """Return how a method ended on a task with the whole budget; None without rows."""
    own = [row for row in rows if row["task"] == task]
    measure = headline_of(own)
    metric = difference(measure)
    whole = [row for row in own if (row["method"], row["fraction"]) == (method, 1.0)]
    found = estimates(whole, baselines_of(own, task), {"samples": COLUMNS["samples"], "metric": metric})
    if not found:
        return None
    scale = 1.0 if measure.percent or not measure.name.endswith("precision") else 100.0  # a precision, in points
    score = found["metric"]
    margin = scale * score.margin if len(whole) >= 3 else math.nan
    share = math.exp(found["samples"].mean)
    if measure.percent or measure.name.endswith("precision"):
        return Reading(share, scale * score.mean, margin)
    sign = 1 if measure.higher_is_better else -1  # named, a score is what it is: more is more
    return Reading(share, sign * score.mean, margin, other=measure.metric)


def shown_tasks(rows: Sequence[Row]) -> list[str]:
    """Return the tasks that our method was run on, the one that saved most last: it is drawn on top."""
    found = {task: read(rows, task, OURS) for task in TASKS if any(row["task"] == task for row in rows)}
    return [
        task for task, _ in sorted(((task, own) for task, own in found.items() if own), key=lambda pair: -pair[1].share)
    ]


def draw(rows: Sequence[Row]) -> Figure:
    """Return the figure: samples on the left, the test score on the right, a line for each task.

    It is narrow, and names of tasks stand above their lines, so that it can be read on a phone.
    """
    tasks = shown_tasks(rows)
    with matplotlib.rc_context({**STYLE, **INKED, "font.size": 10}):
        figure = Figure(figsize=(4.6, 0.44 * len(tasks) + 1.1), layout="constrained", facecolor="none")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for axes in (left, right):
            axes.set(facecolor="none", yticks=[], ylim=(-0.6, len(tasks) - 0.3))
            axes.spines["left"].set_visible(False)
        for place, task in enumerate(tasks):
            left.text(0, place + 0.3, TASKS[task], fontsize=9, va="center")
            _line(left, right, place, {name: read(rows, task, name) for name in METHODS})
        left.set(xlim=(0, 1.16), xlabel="samples trained on")
        left.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        right.axvline(0, color=GRAY, linewidth=0.8, zorder=0)
        right.set(xlim=(-2.2, 2.2), xticks=(-2, 0, 2), xticklabels=("−2", "Adam's", "+2"), xlabel="test score, points")
        for label, color, marker in METHODS.values():
            left.plot([], [], marker, color=color, label=label)
        handles, labels = left.get_legend_handles_labels()
        looks = {"frameon": False, "handletextpad": 0.2, "columnspacing": 1.2}
        figure.legend(handles, labels, loc="outside upper center", ncols=len(METHODS), **looks)
        return figure


def _line(left: Axes, right: Axes, place: int, found: dict[str, Reading | None]) -> None:
    """Draw a task: where each method is, with the 95 % interval of its score over seeds."""
    shares = [reading.share for reading in found.values() if reading]
    left.plot([min(shares), max(shares)], [place, place], color=GRAY, linewidth=1, zorder=0)
    for number, (method, reading) in enumerate(found.items()):
        if reading is None:
            continue
        _, color, marker = METHODS[method]
        looks = {"color": color, "marker": marker, "markersize": 5.5, "linestyle": "none"}
        left.plot([reading.share], [place], **looks)
        if method == OURS:
            where = _beside(reading.share, shares)
            left.annotate(f"{100 * reading.share:.0f} %", (reading.share, place), color=color, fontsize=9, **where)
        if method == "adam":
            continue
        if reading.other:  # has another unit
            right.text(
                0.06, place, f"{reading.other}\n{reading.points:+.2f}".replace("-", "−"), fontsize=8, va="center"
            )
            continue
        shift = 0.17 if number == 1 else -0.17
        right.errorbar([reading.points], [place + shift], xerr=[reading.margin], capsize=2, elinewidth=1, **looks)


def _beside(share: float, shares: Sequence[float]) -> dict[str, Any]:
    """Return where the label of a share stands: where no line is, and no other marker."""
    if share == min(shares) < max(shares):
        return {"xytext": (-7, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
    if share == max(shares):
        return {"xytext": (7, 0), "textcoords": "offset points", "ha": "left", "va": "center"}
    return {"xytext": (0, -5), "textcoords": "offset points", "ha": "center", "va": "top"}


def in_both_lights(svg: str) -> str:
    """Return a drawing whose colors are others where the page is dark."""
    rules = [
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}'
        for light, dark in DARK.items()
        if light in svg
        for kind in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{style}\n {tag}{rest}"


def draw_queue(rates: Sequence[float] = (2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5), batch_size: int = 3) -> Figure:
    """Return a sketch of the queue: units of each sample, where it is due, and where batches end."""
    generator = np.random.default_rng(2030)  # places that lie far enough apart to be told apart
    units = [
        [(begin, generator.uniform(begin, begin + 1 / rate)) for begin in np.arange(0, 2, 1 / rate)] for rate in rates
    ]
    with matplotlib.rc_context({**STYLE, **INKED, "ytick.color": INK}):
        figure = Figure(figsize=(8.6, 3.3), layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set(facecolor="none")
        for line, (rate, own) in enumerate(zip(rates, units, strict=True)):
            begins, places = zip(*own, strict=True)
            axes.barh([line] * len(own), 1 / rate, left=begins, height=0.62, color=UNIT, edgecolor=DUE)
            axes.plot(places, [line] * len(own), "D", color=DUE, markersize=6)
        _cuts(axes, sorted(place for own in units for _, place in own), batch_size)
        words = {2.0: "twice as often", 1.0: "average", 0.5: "half as often"}
        axes.set_yticks(range(len(rates)), [f"sample {line + 1}: {words[rate]}" for line, rate in enumerate(rates)])
        axes.set(xlim=(0, 2), ylim=(len(rates) - 0.5, -1.2), xlabel="training goes on, in epochs of an average sample")
        axes.set_xticks([0, 1, 2])
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return figure


def _cuts(axes: Axes, due: Sequence[float], batch_size: int) -> None:
    """Draw where batches end, and number them."""
    firsts = range(batch_size, len(due), batch_size)
    ends = [(due[first - 1] + due[first]) / 2 for first in firsts]
    for number, (begin, end) in enumerate(zip([0.0, *ends], [*ends, 2.0], strict=True), start=1):
        if end < 2.0:
            axes.axvline(end, color=CUT, linestyle="--", linewidth=1.2)
        axes.text((begin + end) / 2, -0.75, f"batch {number}", ha="center", color=CUT)


def main() -> None:
    """Read the rows and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=FIGURE)
    options = parser.parse_args()
    queue = options.out.with_name(f"queue{options.out.suffix}")
    for path, figure in ((options.out, draw(reported(read_csv(options.rows)))), (queue, draw_queue())):
        with matplotlib.rc_context(STYLE):  # the same figure is the same file
            figure.savefig(path, **({"metadata": {"Date": None}} if path.suffix == ".svg" else {}))
        if path.suffix == ".svg":
            path.write_text(in_both_lights(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
