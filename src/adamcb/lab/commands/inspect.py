"""`adamcb inspect`: the samples that are hard or mislabeled, as a list, as pictures, and all of them as a CSV file.

They are ranked by suspicion, see `SampleTable`: by their mean loss over training. What the trained model predicts is
shown, but does not decide: it may have memorized a wrong label.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from adamcb._files import whole_file
from adamcb.lab.errors import LabError
from adamcb.lab.results import read_arrays, read_json
from adamcb.lab.results.columns import PICTURE_FIELDS
from adamcb.training import SampleTable

COLUMNS = 8
Pictures = dict[str, np.ndarray]


def inspect_run(
    folder: Path,
    method: str | None,
    seed: int,
    out: Path | None,
    output: Console,
    *,
    count: int = 48,
    csv: Path | None = None,
) -> int:
    """Print the `count` most suspicious samples, and write their pictures; with `csv`, write the table of all samples.

    Raises:
        LabError: There is nothing to show, or a file cannot be written.
    """
    if count < 1:
        raise LabError(f"`--count` must be at least 1, got {count}.")
    try:
        path = find_samples(folder, method, seed)
        table, run = read_samples(path), path.parent.parent
        pictured = run / "chosen" / path.name
        pictures = _first(read_arrays(pictured, PICTURE_FIELDS), count) if pictured.is_file() else None
        names = _class_names(run)
    except OSError as error:
        raise LabError(f"`RUN` must be a folder that can be read, got {folder}: {error}.") from error
    output.print(_list(table.top(count), pictures, names, path.stem))
    written = {"table": csv, "picture": None if pictures is None else out or run / f"inspect-{path.stem}.png"}
    for what, place in written.items():
        if place is None:
            continue
        try:
            if what == "table":
                table.to_csv(place)
            else:
                with whole_file(place) as unfinished:
                    _draw(pictures or {}, names, unfinished, path.stem)
        except (OSError, ValueError) as error:
            option = "--csv" if what == "table" else "--out"
            raise LabError(f"The {what} cannot be written to {place} (`{option}`): {error}.") from error
        output.print(f"{what}: {place}", highlight=False, soft_wrap=True)
    return 0


def find_samples(folder: Path, method: str | None, seed: int) -> Path:
    """Return the table of one run: by default of the last method that has pictures, else of the last."""
    if folder.suffix == ".npz" and os.path.isfile(folder):
        table = folder.parent.parent / "samples" / folder.name
        if table.is_file():
            return table
        raise LabError(f"`RUN` must belong to a result folder with tables of samples, got {folder} without {table}.")
    if not os.path.isfile(folder / "config.json"):  # unlike Path.is_file, False for a name that is too long
        raise LabError(f"`RUN` must be a result folder of adamcb, got {folder}, which has no config.json.")
    known = read_json(folder / "config.json")["methods"]
    if method is not None and method not in known:
        raise LabError(f"`--method` must be one of {', '.join(known)}, got {method!r}.")
    files = [f"{name}-seed{seed}.npz" for name in ([method] if method else reversed(known))]
    tables = [folder / "samples" / name for name in files if (folder / "samples" / name).is_file()]
    if not tables:
        raise LabError(f"{folder} has no table of samples of {method or 'any method'} with seed {seed}.")
    return next((table for table in tables if (folder / "chosen" / table.name).is_file()), tables[0])


def read_samples(path: Path) -> SampleTable:
    """Return the table of a run."""
    return SampleTable(**read_arrays(path, tuple(SampleTable.__dataclass_fields__)))


def _first(pictures: Pictures, count: int) -> Pictures:
    return {name: array[:count] for name, array in pictures.items()}


def _class_names(run: Path) -> Sequence[str]:
    config = run / "config.json"
    return read_json(config).get("class_names", ()) if config.is_file() else ()


def _draw(pictures: Pictures, names: Sequence[str], place: Path, title: str) -> None:
    """Write a grid of pictures: label, prediction where it differs, times chosen and mean loss."""
    number = len(pictures["index"])
    rows = max(1, math.ceil(number / COLUMNS))
    figure = Figure(figsize=(1.5 * COLUMNS, 1.95 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, i in zip(grid.flat, range(number), strict=False):
        label, prediction = pictures["label"][i], pictures["prediction"][i]
        axes.set_axis_on()
        axes.imshow(pictures["image"][i], cmap="gray", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        says = "" if label == prediction else f"\nmodel: {_name(names, prediction)}"
        axes.set_title(f"label: {_name(names, label)}{says}", fontsize=8)
        told = f"#{pictures['index'][i]}, {pictures['count'][i]} times\nmean loss {pictures['loss'][i]:.2g}"
        axes.set_xlabel(told, fontsize=7)
    figure.suptitle(f"{title}: the {number} samples with the largest mean loss over training")
    figure.savefig(place, dpi=110)


def _list(top: SampleTable, pictures: Pictures | None, names: Sequence[str], title: str) -> Table:
    """Return the list for the terminal; labels are known where there are pictures."""
    listed = Table(title=f"{title}: the most suspicious of all samples")
    pictured = 0 if pictures is None else len(pictures["index"])
    headings = ("sample", "suspicion", "mean loss", "times chosen", *(("label", "model says") if pictured else ()))
    for heading in headings:
        listed.add_column(heading, justify="right")
    for i in range(len(top)):
        cells = [str(top.index[i]), f"{top.suspicion[i]:.4f}", f"{top.mean_loss[i]:.3f}", str(top.count[i])]
        if pictures is not None and i < pictured:
            label, prediction = pictures["label"][i], pictures["prediction"][i]
            cells += [_name(names, label), "the same" if label == prediction else _name(names, prediction)]
        listed.add_row(*cells)
    return listed


def _name(names: Sequence[str], label: Any) -> str:
    return names[int(label)] if label < len(names) else str(label)
