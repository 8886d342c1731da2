"""Files of a result folder, written whole or not at all. Numbers are read back exactly."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from adamcb.lab.errors import LabError
from adamcb.lab.results.columns import COUNTS, NAMES, Row

# How the name of a file begins while it is being written.
UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place to write to, beside `path`, which takes the name of `path` once all is written."""
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = Path(name)
    try:
        yield written
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        written.chmod(0o666 & ~mask)  # mkstemp lets nobody else read
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all. Numbers are read back exactly."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows whole or not at all; None becomes an empty cell. Numbers are read back exactly."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, or raise `LabError` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is damaged: {error}.") from error


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file of the lab, with numbers as numbers and empty cells as None."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _parse(name, cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def _parse(name: str, cell: str) -> Any:
    if name in NAMES or cell == "":
        return cell or None
    return int(cell) if name in COUNTS else float(cell)
