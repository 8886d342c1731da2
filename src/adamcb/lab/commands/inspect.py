"""`adamcb inspect`: the samples that a bandit came back to, as pictures.

A sample that was chosen often is one whose gradient stayed large. If the trained model still contradicts its label, the
label may well be wrong; those come first.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from adamcb.lab.errors import LabError
from adamcb.lab.results import read_json, whole_file
from adamcb.lab.results.columns import PICTURE_FIELDS

COLUMNS = 8
_WRONG, _RIGHT = "#D55E00", "#999999"


@dataclass(frozen=True, eq=False)
class Chosen:
    """The samples that a run chose most often; arrays of one length, and class names."""

    index: np.ndarray
    count: np.ndarray
    label: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    image: np.ndarray
    class_names: tuple[str, ...]

    @property
    def suspects(self) -> np.ndarray:
        """Which samples the model still contradicts."""
        return self.label != self.prediction

    def order(self) -> np.ndarray:
        """Return the order to look in: contradicted labels first, then as often as they were chosen."""
        return np.lexsort((-self.count, ~self.suspects))


def inspect_run(folder: Path, method: str | None, seed: int, out: Path | None, output: Console) -> int:
    """Print the list and write the picture.

    Raises:
        LabError: There is nothing to show, or the picture cannot be written.
    """
    path = find_chosen(folder, method, seed)
    chosen = read_chosen(path)
    place = out or path.parent.parent / f"inspect-{path.stem}.png"
    try:
        draw_chosen(chosen, place, path.stem)
    except (OSError, ValueError) as error:
        raise LabError(f"The picture cannot be written to {place}: {error}.") from error
    output.print(_table(chosen, path.stem))
    output.print(f"picture: {place}", highlight=False, soft_wrap=True)
    return 0


def find_chosen(folder: Path, method: str | None, seed: int) -> Path:
    """Return the file of one run: by default the last method of the comparison that has one."""
    if folder.suffix == ".npz" and folder.is_file():
        return folder
    if not (folder / "config.json").is_file():
        raise LabError(f"`RUN` must be a result folder of adamcb, got {folder}, which has no config.json.")
    known = read_json(folder / "config.json")["methods"]
    if method is not None and method not in known:
        raise LabError(f"`--method` must be one of {', '.join(known)}, got {method!r}.")
    wanted = [method] if method else reversed(known)
    for name in wanted:
        path = folder / "chosen" / f"{name}-seed{seed}.npz"
        if path.is_file():
            return path
    who = method or "any method"
    raise LabError(f"{folder} has no chosen samples of {who} with seed {seed}: only methods with a bandit choose.")


def read_chosen(path: Path) -> Chosen:
    """Return what a run chose, with the class names of its folder's config.json."""
    config = path.parent.parent / "config.json"
    names = tuple(read_json(config)["class_names"]) if config.is_file() else ()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            fields = {name: arrays[name] for name in PICTURE_FIELDS}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise LabError(f"{path} is damaged: {error}.") from error
    return Chosen(**fields, class_names=names)


def draw_chosen(chosen: Chosen, place: Path, title: str) -> None:
    """Write a grid of pictures: label, prediction where it differs, and how often the sample was chosen."""
    order = chosen.order()
    rows = max(1, math.ceil(len(order) / COLUMNS))
    figure = Figure(figsize=(1.5 * COLUMNS, 1.85 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, sample in zip(grid.flat, order, strict=False):
        wrong = bool(chosen.suspects[sample])
        axes.set_axis_on()
        axes.imshow(chosen.image[sample], cmap="gray", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(_WRONG if wrong else _RIGHT)
            spine.set_linewidth(2.5 if wrong else 0.8)
        text = f"label: {_name(chosen, chosen.label[sample])}"
        text += f"\nmodel: {_name(chosen, chosen.prediction[sample])}" if wrong else ""
        axes.set_title(text, fontsize=8, color=_WRONG if wrong else "black")
        axes.set_xlabel(f"#{chosen.index[sample]}, {chosen.count[sample]} times", fontsize=7)
    count = int(chosen.suspects.sum())
    figure.suptitle(f"{title}: chosen most often; {count} of {len(order)} still contradicted by the model (framed)")
    with whole_file(place) as unfinished:
        figure.savefig(unfinished, dpi=110)


def _table(chosen: Chosen, title: str) -> Table:
    table = Table(title=f"{title}: chosen most often, labels that the model contradicts first")
    for heading in ("sample", "times chosen", "label", "model says", "loss"):
        table.add_column(heading, justify="right")
    for sample in chosen.order():
        says = _name(chosen, chosen.prediction[sample]) if chosen.suspects[sample] else "the same"
        cells = (chosen.index[sample], chosen.count[sample], _name(chosen, chosen.label[sample]), says)
        table.add_row(*map(str, cells), f"{chosen.loss[sample]:.3f}")
    return table


def _name(chosen: Chosen, label: Any) -> str:
    return chosen.class_names[label] if label < len(chosen.class_names) else str(label)
