"""From a result folder to plain records; every number is checked here and nowhere later."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adamcb._files import json_content
from adamcb.lab.results.columns import PICTURE_FIELDS, READINGS, Measure, distinct_measures, measures_of
from adamcb.lab.results.files import check_csv, is_ours, read_arrays

PICTURES = 48  # of a run, on the page


@dataclass(frozen=True)
class Row:
    """One line of results.csv or selection.csv; a value that is empty or not a number is NaN.

    Attributes:
        diverged: Whether the line says that its run diverged; `Folder.diverged` has all that did.
    """

    method: str
    seed: int
    epoch: int
    values: dict[str, float]
    diverged: bool = False


@dataclass(frozen=True, eq=False)
class Chosen:
    """The samples that one run chose most often, most first, as `np.load` gave them."""

    method: str
    seed: int
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Folder:
    """What a result folder holds.

    Attributes:
        config: config.json.
        methods: those of results.csv, in the order of config.json if it names them.
        labels: what the reader sees of each method: its label in config.json, or its name.
        measures: what was measured, losses first.
        results: results.csv; its values have `samples` too, trained on so far, if selection.csv counts them.
        selection: selection.csv; empty if there is none.
        diverged: the runs, as (method, seed), that diverged. No mean counts them.
        summary: summary.csv, header first; empty if there is none.
        chosen: chosen/*.npz, by method and seed; empty if there are none.
    """

    config: dict[str, Any]
    methods: list[str]
    labels: dict[str, str]
    measures: list[Measure]
    results: list[Row]
    selection: list[Row]
    diverged: set[tuple[str, int]]
    summary: list[list[str]]
    chosen: list[Chosen]

    def seeds_of(self, method: str) -> list[int]:
        """Return the seeds that a method was run with."""
        return sorted({row.seed for row in self.results if row.method == method})

    def complete(self, rows: list[Row]) -> list[Row]:
        """Return the rows whose runs did not diverge."""
        return [row for row in rows if (row.method, row.seed) not in self.diverged]

    def fate(self, method: str) -> str:
        """Return how many runs of a method diverged, in words; nothing if none did."""
        lost, all_seeds = sum(name == method for name, _ in self.diverged), len(self.seeds_of(method))
        return "" if lost == 0 else f"{lost} of {all_seeds} diverged" if all_seeds > 1 else "diverged"


def read_folder(folder: Path) -> Folder:
    """Read the files that the page is made of."""
    config = _read_config(_required(folder / "config.json"))
    columns = ("step", "seconds", *(measure.name for measure in measures_of(config)))
    results = _read_rows(_required(folder / "results.csv"), columns)
    measures = distinct_measures(config, [row.values for row in results])
    if not results:
        raise ValueError(f"`results.csv` must hold at least one row, got none in {folder / 'results.csv'}.")
    methods = _in_order(list(dict.fromkeys(row.method for row in results)), config.get("methods"))
    path = folder / "selection.csv"
    selection = _read_rows(path, READINGS, optional=("samples",)) if path.is_file() else []
    results = _with_samples(results, selection)
    seeds = sorted({row.seed for row in results})
    return Folder(
        config=config,
        methods=methods,
        labels=_labels(methods, config.get("labels")),
        measures=measures,
        results=results,
        selection=[row for row in selection if row.method in methods],
        diverged=_diverged(results),
        summary=_read_summary(folder / "summary.csv"),
        chosen=[chosen for method in methods for seed in seeds for chosen in _read_chosen(folder, method, seed)],
    )


def _diverged(results: list[Row]) -> set[tuple[str, int]]:
    """Return the runs that diverged: marked so, ended before the others, or without a finite loss at the end."""
    last = {(row.method, row.seed): row for row in sorted(results, key=lambda row: row.epoch)}
    end = max(row.values["step"] for row in last.values())
    marked = {(row.method, row.seed) for row in results if row.diverged}
    short = {run for run, row in last.items() if row.values["step"] < end}
    lost = {run for run, row in last.items() if not math.isfinite(row.values["train_loss"])}
    return marked | short | lost


def _required(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"`folder` must hold {path.name}, got folder={str(path.parent)!r} without it.")
    return path


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(config).__name__}.")
    # Somebody else's folder may have a plain one.
    return json_content(path.read_bytes()) if "sha256" in config else config


def _in_order(found: list[str], wanted: Any) -> list[str]:
    """Return `found`, those named in `wanted` first and in its order."""
    names = [str(name) for name in wanted] if isinstance(wanted, list) else []
    return [name for name in dict.fromkeys(names) if name in found] + [name for name in found if name not in names]


def _labels(methods: list[str], given: Any) -> dict[str, str]:
    """Return a label for each method; its name where none is given, or where two would be labeled alike."""
    labels = {name: str(given.get(name, name)) if isinstance(given, dict) else name for name in methods}
    shared = [label for label in labels.values() if list(labels.values()).count(label) > 1]
    return {name: name if label in shared else label for name, label in labels.items()}


def _with_samples(results: list[Row], selection: list[Row]) -> list[Row]:
    """Return the results with the samples that each run had trained on, or as they are where one is not known."""
    known = {(row.method, row.seed, row.epoch): row.values.get("samples", math.nan) for row in selection}
    counts = [known.get((row.method, row.seed, row.epoch), math.nan if row.epoch else 0.0) for row in results]
    if not all(map(math.isfinite, counts)):
        return results
    return [replace(row, values={**row.values, "samples": count}) for row, count in zip(results, counts, strict=True)]


def _read_rows(path: Path, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[Row]:
    check_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in ("method", "seed", "epoch", *columns) if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} must have the columns {', '.join(missing)}, got {reader.fieldnames}.")
        found = (*columns, *(name for name in optional if name in (reader.fieldnames or ())))
        return [_read_row(line, found, f"{path}, line {reader.line_num}") for line in reader]


def _read_row(line: dict[str, str], columns: tuple[str, ...], place: str) -> Row:
    try:
        values = {name: float(line[name] or "nan") for name in columns}
        return Row(line["method"], int(line["seed"]), int(line["epoch"]), values, bool(line.get("diverged")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} must hold a number in every column but the first: {error}.") from error


def _read_summary(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    check_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ValueError(f"{path} must have {len(rows[0])} fields a row, got {len(row)} in row {number}.")
    return rows


def _read_chosen(folder: Path, method: str, seed: int) -> list[Chosen]:
    """Read the pictures of one run: a list of one, or of none."""
    path = folder / "chosen" / f"{method}-seed{seed}.npz"
    if not path.is_file():
        return []
    arrays = read_arrays(path, PICTURE_FIELDS) if is_ours(folder) else _read_plain(path)
    arrays = {name: array[:PICTURES] for name, array in arrays.items()}
    lengths = {len(array) if array.ndim else -1 for array in arrays.values()}
    image = arrays["image"]
    pictures = image.dtype == np.uint8 and (image.ndim == 3 or (image.ndim == 4 and image.shape[3] == 3))
    if len(lengths) != 1 or not pictures:
        raise ValueError(
            f"{path} must hold arrays of one length and image uint8 [m, H, W] or [m, H, W, 3], got image of shape "
            f"{image.shape} and type {image.dtype}."
        )
    return [Chosen(method, seed, arrays)]


def _read_plain(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of somebody else's file, which has no digest."""
    try:
        # Opened here because np.load leaves a file that is no zip file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: np.atleast_1d(file[name]) for name in PICTURE_FIELDS}
    except Exception as error:  # a damaged one may fail in any part of zipfile, zlib or NumPy
        raise ValueError(f"{path} must be an npz file with {', '.join(PICTURE_FIELDS)}: {error}.") from error
