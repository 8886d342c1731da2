"""The summary of a comparison in the terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from adamcb.lab.experiment import title_of
from adamcb.lab.output.progress import counted
from adamcb.lab.results.columns import Measure, Row, distinct_measures
from adamcb.lab.results.summary import baseline_of

_SECONDS = ("seconds", "wall seconds")
# The first column of a table may be broken into lines of this length.
_LABEL = 16


def terminal_table(summary: Sequence[Row], config: dict[str, Any], width: int) -> Table:
    """Return the summary for a terminal: what matters most first, and as many columns as `width` holds.

    summary.md has all of them, and summary.csv and the page the best epochs too.
    """
    length, most = counted(config["epochs"], "epoch"), config["max_steps"]
    length = length if most is None else f"at most {counted(most, 'step')}"
    columns = _columns(summary, config)
    shown = _fitting(columns, width)
    table = Table(title=f"{title_of(config)}: {length}, {_seeds(config)}")
    table.add_column("method", min_width=_LABEL)
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for line, record in enumerate(summary):
        table.add_row(_label(record, config), *(columns[heading][line] for heading in shown))
    table.caption = _caption(config, all_columns=len(shown) == len(columns))
    return table


def print_verdict(console: Console, words: str) -> None:
    """Print the verdict: a bullet for each method in a terminal, with the advice in bold; as it is in a file."""
    if not console.is_terminal:
        console.print(words, markup=False, highlight=False, soft_wrap=True)
        return
    bullets = Table.grid(padding=(0, 1))
    for line in words.split("\n"):
        reason, colon, advice = line.rpartition(": ")
        bullets.add_row("•", Text.assemble(reason + colon, (advice, "bold")))
    if words:
        console.print()
        console.print(bullets)


def _columns(summary: Sequence[Row], config: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells of every column, the most important one first; headings have a line for each word."""
    cells = {"samples": _shares(summary, config), "seconds": [_time_cells(record)[0] for record in summary]}
    measures = {measure.name: measure for measure in distinct_measures(config, summary, "final_")}
    tests = [name for name in measures if name.startswith("test_") and not measures[name].is_loss]
    first = ["train_loss", *tests[:1], "test_loss", *tests[1:]]
    for name in [*first, *(name for name in measures if name not in first)]:
        measure = measures[name]
        cells[measure.title.replace(" ", "\n")] = [_cell(record, measure) for record in summary]
    for number, heading in enumerate(_to_baseline(config), start=2):
        cells[heading.replace(" ", "\n", 2)] = [_time_cells(record)[number] for record in summary]
    cells["wall\nseconds"] = [_time_cells(record)[1] for record in summary]
    return cells


def _fitting(columns: dict[str, list[str]], width: int) -> list[str]:
    """Return the first columns that stand beside the labels in `width` characters; one at least."""
    space, found = width - (_LABEL + 4), []
    for heading, cells in columns.items():
        space -= 3 + max(len(word) for text in (heading, *cells) for word in text.split("\n"))
        if space < 0 and found:
            break
        found.append(heading)
    return found


def _shares(summary: Sequence[Row], config: dict[str, Any]) -> list[str]:
    """Return the samples of each method as a share of the baseline's, or their number where that has none."""
    baseline = baseline_of(config["methods"])
    total = next(record["samples"] for record in summary if record["method"] == baseline)
    counts = [record["samples"] for record in summary]
    return ["–" if n is None else f"{100 * n / total:.0f} %" if total else f"{n:,.0f}" for n in counts]


def markdown_table(summary: Sequence[Row], config: dict[str, Any]) -> str:
    """Return the summary at the end of training as a Markdown table; summary.csv has the best epochs too."""
    measures = distinct_measures(config, summary, "final_")
    headings = ["method", *(measure.title for measure in measures), "samples", *_SECONDS, *_to_baseline(config)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for record in summary:
        cells = [_cell(record, measure) for measure in measures]
        cells.append("–" if record["samples"] is None else f"{record['samples']:,.0f}")
        lines.append(f"| {' | '.join([_label(record, config), *cells, *_time_cells(record)])} |")
    return "\n".join([*lines, "", _long_caption(config), ""])


def _label(record: Row, config: dict[str, Any]) -> str:
    label = config["labels"][record["method"]]
    missing = record["diverged_runs"]
    return label if missing == 0 else f"{label} ({missing} of {len(config['seeds'])} diverged)"


def _cell(record: Row, measure: Measure) -> str:
    """Return mean ± spread of the final values."""
    name = f"final_{measure.name}"
    if record[name] is None:
        return "–"
    mean, spread = record[name], record[f"{name}_std"]
    text = number(mean, measure)
    if spread is not None:
        as_fine = not measure.percent and abs(mean) >= 1e-3 and spread >= 5e-5
        text += f" ± {spread:.4f}" if as_fine else f" ± {number(spread, measure)}"
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


def _caption(config: dict[str, Any], *, all_columns: bool) -> str:
    """Return what to know about the table in the terminal."""
    label = config["labels"][baseline_of(config["methods"])]
    several = len(config["seeds"]) > 1
    spread = f"Mean ± one standard deviation over {_seeds(config)}. " if several else ""
    more = "" if all_columns else " More columns: summary.md."
    return f"{spread}Samples are a share of {label}'s. Seconds are the processor's, or an accelerator's.{more}"


def _long_caption(config: dict[str, Any]) -> str:
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
