"""The summary of a comparison: as records, in the terminal, as CSV and as Markdown.

"Final" is after the last epoch, "best" the best epoch of each run; both are means over seeds, with the standard
deviation over seeds (of a sample: divided by their number minus 1). Steps and seconds to the baseline: the first
evaluation at which a run's training loss is at or below the final training loss of the baseline with the same seed,
averaged over the runs that got there. The baseline is Adam, or the first method where there is no Adam.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from adamcb.lab.results import MEASURES, Row

BASELINE = "adam"
# Columns of a terminal that hold the whole table.
WIDE = 165
TITLES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
}
SUMMARY_COLUMNS = (
    "method",
    "runs",
    *(f"{when}_{name}{suffix}" for name in MEASURES for when in ("final", "best") for suffix in ("", "_std")),
    "seconds",
    "seconds_std",
    "reached_baseline",
    "steps_to_baseline",
    "seconds_to_baseline",
)

Curves = dict[tuple[str, int], list[Row]]


def curves_of(results: Sequence[Row]) -> Curves:
    """Return the rows of every run, by method and seed."""
    curves: Curves = {}
    for row in results:
        curves.setdefault((row["method"], row["seed"]), []).append(row)
    return curves


def baseline_of(methods: Sequence[str]) -> str:
    """Return the method that the others are measured against."""
    return BASELINE if BASELINE in methods else methods[0]


def summarize(results: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """Return one record a method, with `SUMMARY_COLUMNS`; None where there is nothing to say.

    A run that ended early, because it diverged, counts in none of them.
    """
    curves = curves_of(results)
    last = max(row["step"] for row in results)
    targets = {
        seed: rows[-1]["train_loss"]
        for (method, seed), rows in curves.items()
        if method == baseline_of(methods) and rows[-1]["step"] == last
    }
    return [_summarize_method(method, curves, targets, last) for method in methods]


def _summarize_method(method: str, curves: Curves, targets: dict[int, float], last: int) -> Row:
    runs = {seed: rows for (name, seed), rows in curves.items() if name == method and rows[-1]["step"] == last}
    record: Row = {"method": method, "runs": len(runs)}
    for name in MEASURES:
        best = max if name.endswith("accuracy") else min
        record |= _moments(f"final_{name}", [rows[-1][name] for rows in runs.values()])
        record |= _moments(f"best_{name}", [best(row[name] for row in rows) for rows in runs.values()])
    record |= _moments("seconds", [rows[-1]["seconds"] for rows in runs.values()])
    hits = [_first_at(rows, targets[seed]) for seed, rows in runs.items() if seed in targets]
    hits = [row for row in hits if row is not None]
    record["reached_baseline"] = len(hits)
    for name in ("steps", "seconds"):
        values = [row[name.removesuffix("s") if name == "steps" else name] for row in hits]
        record[f"{name}_to_baseline"] = statistics.fmean(values) if values else None
    return record


def _first_at(rows: Sequence[Row], target: float) -> Row | None:
    return next((row for row in rows if row["train_loss"] <= target), None)


def _moments(name: str, values: Sequence[float]) -> Row:
    mean = statistics.fmean(values) if values else None
    return {name: mean, f"{name}_std": statistics.stdev(values) if len(values) > 1 else None}


def terminal_tables(summary: Sequence[Row], config: dict[str, Any], width: int) -> list[Table]:
    """Return the summary for a terminal: one table, or where `width` is too small for it, three under one another.

    The final values are above, the best ones below them.
    """
    length = f"{config['epochs']} epochs" if config["max_steps"] is None else f"at most {config['max_steps']} steps"
    title = f"{config['model']} on {config['dataset']}: {length}, {_seeds(config)}"
    columns = {TITLES[name]: [_final_and_best(record, name) for record in summary] for name in MEASURES}
    times = [_time_cells(record) for record in summary]
    columns |= dict(zip(("seconds", *_to_baseline(config)), map(list, zip(*times, strict=True)), strict=True))
    headings = list(columns)
    groups = [headings] if width >= WIDE else [headings[:2], headings[2:4], headings[4:]]
    tables = []
    for group in groups:
        table = Table(title=title if not tables else None)
        table.add_column("method")
        for heading in group:
            table.add_column(heading, justify="right")
        for line, record in enumerate(summary):
            table.add_row(_label(record, config), *(columns[heading][line] for heading in group))
        tables.append(table)
    tables[-1].caption = _caption(config)
    return tables


def _final_and_best(record: Row, name: str) -> str:
    return f"{_cell(record, f'final_{name}')}\nbest {_cell(record, f'best_{name}')}"


def markdown_table(summary: Sequence[Row], config: dict[str, Any]) -> str:
    """Return the summary as a Markdown table."""
    headings = ["method", *(f"{when} {TITLES[name]}" for name in MEASURES for when in ("final", "best"))]
    headings += ["seconds", *_to_baseline(config)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for record in summary:
        cells = [_cell(record, f"{when}_{name}") for name in MEASURES for when in ("final", "best")]
        lines.append(f"| {' | '.join([_label(record, config), *cells, *_time_cells(record)])} |")
    return "\n".join([*lines, "", _caption(config), ""])


def _label(record: Row, config: dict[str, Any]) -> str:
    label = config["labels"][record["method"]]
    missing = len(config["seeds"]) - record["runs"]
    return label if missing == 0 else f"{label} ({missing} of {len(config['seeds'])} diverged)"


def _cell(record: Row, name: str) -> str:
    """Return mean ± standard deviation; accuracies in percent."""
    write: Callable[[float], str] = (lambda x: f"{100 * x:.2f}") if name.endswith("accuracy") else _four_digits
    if record[name] is None:
        return "–"
    spread = record[f"{name}_std"]
    unit = " %" if name.endswith("accuracy") else ""
    return write(record[name]) + ("" if spread is None else f" ± {write(spread)}") + unit


def _four_digits(value: float) -> str:
    return f"{value:.4f}" if value == 0.0 or abs(value) >= 1e-3 else f"{value:.1e}"


def _time_cells(record: Row) -> list[str]:
    if record["seconds"] is None:
        return ["–", "–", "–"]
    cells = [f"{record['seconds']:.1f}"]
    if record["steps_to_baseline"] is None:
        return [*cells, "not reached", "not reached"]
    share = "" if record["reached_baseline"] == record["runs"] else f" ({record['reached_baseline']}/{record['runs']})"
    return [*cells, f"{record['steps_to_baseline']:.0f}{share}", f"{record['seconds_to_baseline']:.1f}{share}"]


def _to_baseline(config: dict[str, Any]) -> list[str]:
    label = config["labels"][baseline_of(config["methods"])]
    return [f"steps to {label}'s", f"seconds to {label}'s"]


def _seeds(config: dict[str, Any]) -> str:
    count = len(config["seeds"])
    return f"{count} seed{'s' if count > 1 else ''}"


def _caption(config: dict[str, Any]) -> str:
    label = config["labels"][baseline_of(config["methods"])]
    return (
        f"Mean ± one standard deviation over {_seeds(config)}. The last columns: until the training loss was first at "
        f"or below the final one of {label} with the same seed, looked at once an epoch."
    )


def json_summary(summary: Sequence[Row], config: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    """Return what `--json` prints: no number in it is NaN or infinite."""
    records = [{name: _finite(value) for name, value in record.items()} for record in summary]
    return {"config": config, "baseline": baseline_of(config["methods"]), "summary": records, "files": files}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
