"""Where data files are looked for, and how they get there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pooch

ENVIRONMENT_VARIABLE = "ADAMCB_DATA"

Found = TypeVar("Found")


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch, with the checksum ("md5:..." or "sha256:...") that it must have."""

    url: str
    checksum: str

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


def data_roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return the folders to search: `data_dir`, those of $ADAMCB_DATA (separated as in $PATH), the user's cache."""
    roots = []
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise NotADirectoryError(f"`data_dir` must be an existing folder, got data_dir={os.fspath(data_dir)!r}.")
        roots.append(Path(data_dir))
    listed = os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep)
    roots += [Path(entry) for entry in listed if entry]
    return [*roots, cache_folder()]


def cache_folder() -> Path:
    """Return the folder in the user's cache into which files are fetched."""
    return Path(pooch.os_cache("adamcb"))


def find_or_fetch(
    name: str,
    find: Callable[[Path], Found | None],
    roots: Sequence[Path],
    remote: Sequence[RemoteFile],
    *,
    subfolder: str,
    download: bool,
    hint: str = "",
) -> Found:
    """Return what `find` finds first in `roots`; else fetch the files into the user's cache and look there.

    Raises:
        FileNotFoundError: there is nothing, and nothing could be fetched; it says which files go where.
    """
    for root in roots:
        if (found := find(root)) is not None:
            return found
    if not download:
        raise FileNotFoundError(_missing(name, roots, remote, subfolder, "downloading is switched off", hint))
    try:
        for file in remote:
            _fetch(file, cache_folder() / subfolder)
    # OSError covers every failure of the network and the disk; ValueError is pooch's word for a wrong checksum.
    except (OSError, ValueError) as error:
        reason = f"the download failed ({error})"
        raise FileNotFoundError(_missing(name, roots, remote, subfolder, reason, hint)) from error
    found = find(cache_folder())
    if found is None:
        reason = f"what was downloaded into {cache_folder() / subfolder} is gone"
        raise FileNotFoundError(_missing(name, roots, remote, subfolder, reason, hint))
    return found


def find_file(folder: str, filename: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return a data file that cannot be fetched: FOLDER/FILENAME, or FILENAME, in the first root that has it.

    Raises:
        FileNotFoundError: No root has it; it says where to put it.
    """
    roots = data_roots(data_dir)
    for place in (root / inner / filename for root in roots for inner in (folder, "")):
        if place.is_file():
            return place
    lines = [f"The file {filename} was not found. Put it into one of", *(f"  {root / folder}" for root in roots)]
    raise FileNotFoundError("\n".join([*lines, f"or name its folder in ${ENVIRONMENT_VARIABLE}."]))


def _fetch(file: RemoteFile, folder: Path) -> None:
    pooch.retrieve(file.url, known_hash=file.checksum, fname=file.filename, path=folder)


def _missing(
    name: str, roots: Sequence[Path], remote: Sequence[RemoteFile], subfolder: str, reason: str, hint: str
) -> str:
    lines = [f"The dataset {name!r} was not found, and {reason}."]
    lines += [hint] if hint else []
    lines += ["Put these files", *(f"  {file.filename}   (from {file.url})" for file in remote), "into one of"]
    lines += [f"  {root / subfolder}" for root in roots]
    lines += [f"or name another folder as data_dir (--data-dir) or in ${ENVIRONMENT_VARIABLE}."]
    return "\n".join(lines)
