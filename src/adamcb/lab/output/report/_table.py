"""The summary table: from summary.csv, or from the results where there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from adamcb.lab.output.report._read import Folder
from adamcb.lab.results.columns import READINGS, Measure, measures_of
from adamcb.lab.results.statistics import mean_and_spread
from adamcb.lab.results.summary import baseline_of

DEVIATION_ENDINGS = ("_std", "_deviation", "_sd")
WORDS = {"lr": "learning rate", "num_train": "training samples", "num_test": "test samples"}


@dataclass(frozen=True)
class Cell:
    """A field of the table: what is shown, and the number it is sorted by (None: it is a text).

    `earlier`: the best value of training, where the final one is another.
    """

    text: str
    value: float | None = None
    best: bool = False
    earlier: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column is the method."""

    header: list[str]
    rows: list[list[Cell]]


def summary_table(folder: Folder) -> Table:
    """Return the table with means and deviations in one column and the best of each column marked."""
    rows = summary_rows(folder)
    columns = dict(zip(rows[0], map(list, zip(*rows[1:], strict=True)), strict=True))
    cells: dict[str, list[Cell]] = {}
    for name, texts in columns.items():
        if not _mean_of(name, columns):
            deviations = next((columns[key] for key in columns if _mean_of(key, columns) == name), None)
            cells[name] = _column(name, texts, deviations, folder.measures)
    for name, finals_of in cells.items():
        bests = cells.get(name.replace("final_", "best_", 1), finals_of)
        cells[name] = [_with_best(final, best) for final, best in zip(finals_of, bests, strict=True)]
    known = [measure.name for measure in folder.measures]
    repeats = [measure for measure in measures_of(folder.config) if measure.name not in known]
    shown = {
        name: column
        for name, column in cells.items()
        if not _says_nothing(name, cells) and not any(_holds(name, measure) for measure in repeats)
    }
    header = [title(name).replace("baseline", f"{_baseline(folder)}'s end") for name in shown]
    return Table(header, [list(row) for row in zip(*shown.values(), strict=True)])


def summary_rows(folder: Folder) -> list[list[str]]:
    """Return summary.csv, or what it would hold."""
    return folder.summary if len(folder.summary) > 1 else _from_results(folder)


def _with_best(final: Cell, best: Cell) -> Cell:
    return final if best.text == final.text else replace(final, earlier=best.text)


def _says_nothing(name: str, cells: dict[str, list[Cell]]) -> bool:
    """Return whether a column repeats others: bests stand below finals, and most counts are the same for all."""
    texts = [cell.text for cell in cells[name]]
    if name == "diverged_runs":  # it stands beside the name
        return True
    if name in ("runs", "samples"):
        return len(set(texts)) == 1
    if name == "reached_baseline":
        return texts == [cell.text for cell in cells.get("runs", [])]
    return name.startswith("best_") and name.replace("best_", "final_", 1) in cells


def _baseline(folder: Folder) -> str:
    return folder.labels[baseline_of(folder.methods)]


def _mean_of(name: str, columns: dict[str, list[str]]) -> str | None:
    """Return the column whose deviations `name` holds, if it is such a column."""
    stems = [name.removesuffix(ending) for ending in DEVIATION_ENDINGS if name.endswith(ending)]
    return next((mean for stem in stems for mean in (stem, f"{stem}_mean") if mean in columns), None)


def title(name: str) -> str:
    """Return a name of a column or of a setting as words."""
    words = WORDS.get(name, name.removesuffix("_mean").replace("_", " "))
    return words[:1].upper() + words[1:]


def is_percent(name: str, measures: list[Measure]) -> bool:
    """Return whether readers see a column in percent."""
    return any(measure.percent for measure in measures if _holds(name, measure))


def _holds(name: str, measure: Measure) -> bool:
    return name.removesuffix("_mean").endswith(measure.name)


def _column(name: str, texts: list[str], deviations: list[str] | None, measures: list[Measure]) -> list[Cell]:
    values = [_number(text) for text in texts]
    if name == "method" or any(value is None for value in values):
        return [Cell(text) for text in texts]
    known = [value for value in values if value is not None]
    best, percent = _best(name, known, measures), is_percent(name, measures)
    spreads = [_number(text) for text in deviations] if deviations else [None] * len(known)
    pairs = [(value, math.nan if spread is None else spread) for value, spread in zip(known, spreads, strict=True)]
    width = next((spread for value, spread in pairs if value == best), math.nan)
    return [
        Cell(
            with_deviation(value, spread, percent=percent),
            value,
            best is not None and looks_equal(value, best, width, percent=percent),
        )
        for value, spread in pairs
    ]


def looks_equal(value: float, best: float, deviation: float, *, percent: bool = False) -> bool:
    """Return whether a value is the best one in all digits that are shown of that."""
    digits = 4 if percent else _digits(best, deviation)
    return math.isfinite(value) and f"{value:.{digits}f}" == f"{best:.{digits}f}"


def _number(text: str) -> float | None:
    try:
        return float(text) if text.strip() else math.nan
    except ValueError:
        return None


def _best(name: str, values: list[float], measures: list[Measure]) -> float | None:
    """Return the value to be marked: the best of a measure, the smallest time; None if all are equal."""
    finite = [value for value in values if math.isfinite(value)]
    if len(set(finite)) < 2:
        return None
    measure = next((measure for measure in measures if _holds(name, measure)), None)
    if measure is not None:
        return measure.best(finite)
    return min(finite) if any(word in name for word in ("seconds", "steps", "samples")) else None


def with_deviation(mean: float, deviation: float, *, percent: bool = False) -> str:
    """Return "mean ± deviation" with as many digits as mean something."""
    if not math.isfinite(mean):
        return "–"
    scale, unit = (100.0, "\u00a0%") if percent else (1.0, "")
    mean, deviation = scale * mean, scale * deviation
    if not deviation > 0.0 and mean == round(mean) and not unit:
        return f"{mean:,.0f}"
    digits = 2 if unit else _digits(mean, deviation)
    spread = f" ± {deviation:.{digits}f}" if math.isfinite(deviation) else ""
    return f"{mean:.{digits}f}{spread}{unit}".replace("-", "−")


def _digits(mean: float, deviation: float) -> int:
    """Return how many decimals show two digits of the deviation, if there is one, and at most four of the mean."""
    most = 3 - math.floor(math.log10(abs(mean))) if mean else 2
    wanted = 1 - math.floor(math.log10(deviation)) if deviation > 0.0 else most
    return min(9, max(0, min(most, wanted)))


def finals(folder: Folder, name: str) -> dict[str, tuple[float, float]]:
    """Return mean and deviation over seeds at each method's last epoch; runs that diverged do not count."""
    rows = folder.complete(folder.selection if name in READINGS else folder.results)
    result = {}
    for method in folder.methods:
        mine = [row for row in rows if row.method == method]
        last = max((row.epoch for row in mine), default=0)
        result[method] = mean_and_spread([row.values[name] for row in mine if row.epoch == last])
    return result


def _from_results(folder: Folder) -> list[list[str]]:
    names = (*(measure.name for measure in folder.measures), "seconds")
    values = {name: finals(folder, name) for name in names}
    header = ["method", *(f"final_{name}{ending}" for name in names for ending in ("", "_std"))]
    rows = [[method, *(str(part) for name in names for part in values[name][method])] for method in folder.methods]
    return [[name.replace("final_seconds", "seconds") for name in header], *rows]
