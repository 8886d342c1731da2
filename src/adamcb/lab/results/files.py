"""Files of a result folder, written whole or not at all. Numbers are read back exactly.

What is read again is checked first. A JSON file begins with a digest of its content. CSV files stay plain: their
digests are in the file SHA256SUMS of the folder, which `sha256sum --check SHA256SUMS` understands.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from adamcb._files import (
    check_archive,
    digest_of,
    folder_lock,
    has_json_digest,
    json_bytes,
    json_content,
    new_save_id,
    seal_archive,
    whole_file,
)
from adamcb.lab.errors import LabError
from adamcb.lab.results.columns import COUNTS, NAMES, Row

SUMS = "SHA256SUMS"
_SUM = re.compile("([0-9a-f]{64})  (.+)")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all. Numbers are read back exactly."""
    with whole_file(path) as place:
        place.write_bytes(json_bytes(content))


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an npz file whole or not at all."""
    with whole_file(path) as place:
        np.savez_compressed(place, **cast(Any, arrays))
        seal_archive(place, new_save_id())


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows whole or not at all; None becomes an empty cell. Numbers are read back exactly."""
    _write_with_sum(path, _csv_text(columns, rows, header=True))


def append_csv(path: Path, columns: Sequence[str], row: Row) -> None:
    """Add a row to a CSV file, which may not be there yet. Processes that add to one file take turns."""
    with folder_lock(path):
        before = ""
        if path.is_file():
            check_csv(path)
            before = path.read_text(encoding="utf-8")
        _write_with_sum(path, before + _csv_text(columns, [row], header=not before))


def _csv_text(columns: Sequence[str], rows: Iterable[Row], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write_with_sum(path: Path, text: str) -> None:
    new, known = hashlib.sha256(text.encode()).hexdigest(), _read_sums(path.parent)
    # Stopped at any moment, the folder has the digest of the file that is there. One without a digest is adopted.
    old = known.get(path.name, [digest_of(path)] if path.is_file() else [])
    _write_sums(path.parent, {**known, path.name: [*old, new]})
    write_text(path, text)
    _write_sums(path.parent, {**known, path.name: [new]})


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds, or raise `LabError` if it is damaged."""
    try:
        return json_content(path.read_bytes())
    except ValueError as error:
        raise LabError(f"{path} is damaged: {error}") from error


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return these arrays of an npz file, or raise `LabError` if it is damaged."""
    try:
        with path.open("rb") as file:
            check_archive(file)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise LabError(f"{path} is damaged: {error}") from error


def check_csv(path: Path) -> None:
    """Raise `LabError` if the digest of a CSV file is another one, or is missing in a folder that we wrote."""
    known = _read_sums(path.parent)
    if path.name not in known and is_ours(path.parent):
        raise LabError(f"{path.parent / SUMS} is damaged, or was removed: it must list {path.name}.")
    lost = [name for name in known if not (path.parent / name).is_file()]
    if lost:
        raise LabError(f"{path.parent / SUMS} is damaged, or {lost[0]} was removed: it is listed, and not there.")
    if path.name in known and digest_of(path) not in known[path.name]:
        raise LabError(f"{path} is damaged: its content is not what was written, the SHA-256 digest differs.")


def is_ours(folder: Path) -> bool:
    """Tell whether a folder's configuration begins with a digest. Somebody else's tables need none."""
    config = folder / "config.json"
    return config.is_file() and has_json_digest(config.read_bytes())


def _read_sums(folder: Path) -> dict[str, list[str]]:
    """Return the digests that each file of a folder may have. There are two while a file is being replaced."""
    known: dict[str, list[str]] = {}
    if not (folder / SUMS).is_file():
        return known
    *lines, end = (folder / SUMS).read_bytes().decode(errors="replace").split("\n")
    for line in [*lines, *filter(None, [end])]:
        found = None if end else _SUM.fullmatch(line)
        if found is None:
            raise LabError(f"{folder / SUMS} is damaged: it must have lines of a digest, two spaces, and a name.")
        known.setdefault(found[2], []).append(found[1])
    return known


def _write_sums(folder: Path, known: dict[str, list[str]]) -> None:
    lines = (f"{digest}  {name}\n" for name, digests in known.items() for digest in digests)
    write_text(folder / SUMS, "".join(lines))


def read_csv(path: Path) -> list[Row]:
    """Return the rows of a CSV file of the lab, with numbers as numbers and empty cells as None.

    Raises:
        LabError: The file is damaged, or another program's table.
    """
    check_csv(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: _parse(name, cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    except (ValueError, TypeError, csv.Error) as error:  # TypeError: a line has more cells than the first, or fewer
        raise LabError(f"{path} must be a table of adamcb: {error}.") from error


def _parse(name: str, cell: str) -> Any:
    if name in NAMES or cell == "":
        return cell or None
    return int(cell) if name in COUNTS else float(cell)
