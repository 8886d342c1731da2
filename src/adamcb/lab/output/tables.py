"""The summary of a comparison in the terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from adamcb.lab.experiment import title_of
from adamcb.lab.output.progress import counted
from adamcb.lab.results.columns import Measure, Row, measures_of
from adamcb.lab.results.summary import baseline_of

# Columns of a terminal that hold the whole table.
WIDE = 180
_SECONDS = ("seconds", "wall seconds")


def terminal_tables(summary: Sequence[Row], config: dict[str, Any], width: int) -> list[Table]:
    """Return the summary for a terminal: one table, or several under one another where `width` is too small for it.

    The final values are above, and below them the best ones where an earlier epoch was better.
    """
    length, most = counted(config["epochs"], "epoch"), config["max_steps"]
    length = length if most is None else f"at most {counted(most, 'step')}"
    title = f"{title_of(config)}: {length}, {_seeds(config)}"
    measures = measures_of(config)
    columns = {measure.title: [_final_and_best(record, measure) for record in summary] for measure in measures}
    times = [_time_cells(record) for record in summary]
    columns |= dict(zip((*_SECONDS, *_to_baseline(config)), map(list, zip(*times, strict=True)), strict=True))
    tables = []
    for group in _groups(list(columns), len(measures), width):
        table = Table(title=title if not tables else None)
        table.add_column("method")
        for heading in group:
            table.add_column(heading, justify="right")
        for line, record in enumerate(summary):
            table.add_row(_label(record, config), *(columns[heading][line] for heading in group))
        tables.append(table)
    tables[-1].caption = _caption(config)
    return tables


def _groups(headings: list[str], num_measures: int, width: int) -> list[list[str]]:
    """Return which columns stand in one table: all of them, or both splits of a measure at a time."""
    if num_measures <= 4 and width >= WIDE:
        return [headings]
    starts = range(0, num_measures, 2)
    return [*(headings[start : start + 2] for start in starts), headings[num_measures:]]


def _final_and_best(record: Row, measure: Measure) -> str:
    final, best = (_cell(record, measure, when) for when in ("final", "best"))
    return final if final == best else f"{final}\nbest {best}"


def markdown_table(summary: Sequence[Row], config: dict[str, Any]) -> str:
    """Return the summary as a Markdown table."""
    columns = [(measure, when) for measure in measures_of(config) for when in ("final", "best")]
    headings = ["method", *(f"{when} {measure.title}" for measure, when in columns), *_SECONDS, *_to_baseline(config)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for record in summary:
        cells = [_cell(record, measure, when) for measure, when in columns]
        lines.append(f"| {' | '.join([_label(record, config), *cells, *_time_cells(record)])} |")
    return "\n".join([*lines, "", _caption(config), ""])


def _label(record: Row, config: dict[str, Any]) -> str:
    label = config["labels"][record["method"]]
    missing = record["diverged_runs"]
    return label if missing == 0 else f"{label} ({missing} of {len(config['seeds'])} diverged)"


def _cell(record: Row, measure: Measure, when: str) -> str:
    """Return mean ± spread, of the final or the best values."""
    name = f"{when}_{measure.name}"
    if record[name] is None:
        return "–"
    spread = record[f"{name}_std"]
    text = number(record[name], measure) + ("" if spread is None else f" ± {number(spread, measure)}")
    return text + (" %" if measure.percent else "")


def number(value: float, measure: Measure) -> str:
    """Return a value of a measure as text, without its unit."""
    if measure.percent:
        return f"{100 * value:.2f}"
    return f"{value:.4f}" if value == 0.0 or abs(value) >= 1e-3 else f"{value:.1e}"


def _time_cells(record: Row) -> list[str]:
    if record["seconds"] is None:
        return ["–"] * 4
    cells = [f"{record['seconds']:.1f}", f"{record['wall_seconds']:.1f}"]
    if record["steps_to_baseline"] is None:
        return [*cells, "not reached", "not reached"]
    share = "" if record["reached_baseline"] == record["runs"] else f" ({record['reached_baseline']}/{record['runs']})"
    return [*cells, f"{record['steps_to_baseline']:.0f}{share}", f"{record['seconds_to_baseline']:.1f}{share}"]


def _to_baseline(config: dict[str, Any]) -> list[str]:
    label = config["labels"][baseline_of(config["methods"])]
    return [f"steps to {label}'s", f"seconds to {label}'s"]


def _seeds(config: dict[str, Any]) -> str:
    return counted(len(config["seeds"]), "seed")


def _caption(config: dict[str, Any]) -> str:
    label = config["labels"][baseline_of(config["methods"])]
    several = len(config["seeds"]) > 1
    spread = f"Mean ± one standard deviation over {_seeds(config)}. " if several else ""
    return (
        f"{spread}Runs that diverged count nowhere. Seconds are the "
        f"processor's, or an accelerator's; wall seconds go by the clock on the wall. The last columns: until the "
        f"training loss was first at or below the final one of {label} with the same seed, looked at once an epoch."
    )


def json_summary(summary: Sequence[Row], config: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    """Return what `--json` prints: no number in it is NaN or infinite."""
    records = [{name: _finite(value) for name, value in record.items()} for record in summary]
    baseline, words = baseline_of(config["methods"]), config["verdict"]
    return {"verdict": words, "config": config, "baseline": baseline, "summary": records, "files": files}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
