"""CIFAR-10, in its binary version: records of one label byte and 3,072 pixel bytes (red, green and blue planes).

Read from a folder of batches or straight out of the .tar.gz, which is never unpacked to disk. The Python version of
the dataset is a pickle, which could run any code; it is not read.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np
import torch

from adamcb.lab.tasks.datasets._images import RawImages
from adamcb.lab.tasks.datasets._places import RemoteFile, find_or_fetch
from adamcb.lab.tasks.datasets._reading import GZIP_MAGIC, BoundedReader, DataFileError, damage_named

logger = logging.getLogger(__name__)

RECORD_BYTES = 1 + 3 * 32 * 32
FOLDERS = ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz")
PICKLES = ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1")
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# The standard distribution: batch → SHA-256.
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


@dataclass(frozen=True)
class CifarSource:
    """The six batches, the last of them the test set, and where they come from."""

    sha256: dict[str, str] = field(default_factory=lambda: dict(SHA256))
    records_per_batch: int = 10_000
    archive: RemoteFile = RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    )

    @property
    def batch_bytes(self) -> int:
        """The size of a batch."""
        return self.records_per_batch * RECORD_BYTES


CIFAR10 = CifarSource()


def load_cifar10(source: CifarSource, roots: Sequence[Path], *, download: bool = True) -> RawImages:
    """Find (or fetch) and read the six batches; a copy with other bytes than the standard ones is used, with a note."""
    place = find_or_fetch(
        "cifar10",
        lambda root: _find_place(root, source),
        roots,
        [source.archive],
        subfolder="",
        download=download,
        hint=_hint(roots, source),
    )
    batches = _read_folder(place, source) if place.is_dir() else _read_archive(place, source)
    note = _verify(place, batches, source)
    decoded = {name: _decode(_named(place, name), batches[name], source) for name in source.sha256}
    *train, (test_images, test_labels) = decoded.values()
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return RawImages(
        torch.from_numpy(images),
        torch.from_numpy(labels).long(),
        torch.from_numpy(test_images),
        torch.from_numpy(test_labels).long(),
        CLASS_NAMES,
        note=note,
    )


def _find_place(root: Path, source: CifarSource) -> Path | None:
    """Return the folder that holds all batches, or else the archive, below `root`."""
    for folder in FOLDERS:
        if all((root / folder / name).is_file() for name in source.sha256):
            return root / folder
    return next((root / archive for archive in ARCHIVES if (root / archive).is_file()), None)


def _hint(roots: Sequence[Path], source: CifarSource) -> str:
    """Return what to say if nothing is found: the other layout, a folder that lacks a batch, a pickle."""
    lines = [f"The files {', '.join(source.sha256)} in a folder {FOLDERS[0]} do as well as the archive below."]
    for folder in (root / name for root in roots for name in FOLDERS):
        missing = [name for name in source.sha256 if not (folder / name).is_file()]
        if 0 < len(missing) < len(source.sha256):
            lines.append(f"{folder} lacks {', '.join(missing)}.")
    for path in (root / folder / name for root in roots for folder in ("cifar10", "") for name in PICKLES):
        if path.exists():
            lines.append(f"{path} is the Python version, a pickle, which is never loaded.")
    return "\n".join(lines)


def _read_folder(folder: Path, source: CifarSource) -> dict[str, bytearray]:
    batches = {}
    for name in source.sha256:
        with (folder / name).open("rb") as stream:
            batches[name] = bytearray(stream.read(source.batch_bytes + 1))
    return batches


def _read_archive(path: Path, source: CifarSource) -> dict[str, bytearray]:
    """Read the batches from a .tar.gz in one pass, bounded in memory, refusing members that have no business there."""
    # Room for the batches, the text files and the padding of tar.
    limit = (len(source.sha256) + 1) * source.batch_bytes + 2**20
    with damage_named(path), path.open("rb") as plain:
        if plain.peek(2)[:2] != GZIP_MAGIC:
            raise DataFileError(f"{path} must be a gzip-compressed tar archive, got other first bytes.")
        with gzip.open(plain, "rb") as unpacked:
            bounded = cast(BinaryIO, BoundedReader(cast(BinaryIO, unpacked), limit, path))
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                batches = _read_members(path, archive, source)
            # tarfile stops at its end mark; what follows must be read for gzip to check its checksum.
            while bounded.read(2**20):
                pass
    missing = [name for name in source.sha256 if name not in batches]
    if missing:
        raise DataFileError(f"{path} must hold {', '.join(source.sha256)}; it lacks {', '.join(missing)}.")
    return batches


def _read_members(path: Path, archive: tarfile.TarFile, source: CifarSource) -> dict[str, bytearray]:
    batches: dict[str, bytearray] = {}
    for member in archive:
        name = _member_name(path, member)
        if name in batches:
            raise DataFileError(f"{path} must hold {name} once, but it is there again: {member.name}.")
        if name in source.sha256 and (stream := archive.extractfile(member)) is not None:
            batches[name] = bytearray(stream.read(source.batch_bytes + 1))
    return batches


def _member_name(path: Path, member: tarfile.TarInfo) -> str:
    """Return the last part of a member's name, or raise if the member is not an honest file or folder."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise DataFileError(f"{path} must hold relative names without '..', got {member.name!r}.")
    if not (member.isfile() or member.isdir()):
        raise DataFileError(f"{path} must hold plain files and folders only, got the link or device {member.name!r}.")
    if member.isfile() and name.name in ("data_batch_1", "test_batch", "batches.meta"):
        raise DataFileError(
            f"{path} is the Python version of CIFAR-10, a pickle, which is never loaded: get the binary version."
        )
    return name.name if member.isfile() else ""


def _verify(place: Path, batches: dict[str, bytearray], source: CifarSource) -> str:
    """Return "" if every batch has its published checksum, and otherwise a note, which is logged too."""
    other = [name for name, sha256 in source.sha256.items() if hashlib.sha256(batches[name]).hexdigest() != sha256]
    if not other:
        return ""
    note = (
        f"CIFAR-10 in {place} is not the standard copy: {len(other)} of {len(source.sha256)} files have another "
        f"SHA-256 ({other[0]} first). It is used as it is."
    )
    logger.warning(note)
    return note


def _decode(path: str, batch: bytearray, source: CifarSource) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 3, 32, 32] and labels [n] of one batch."""
    if len(batch) != source.batch_bytes:
        size = f"{len(batch)} bytes: it is truncated" if len(batch) < source.batch_bytes else "more"
        raise DataFileError(
            f"{path} must have {source.records_per_batch} records of {RECORD_BYTES} = {source.batch_bytes} bytes, "
            f"got {size}."
        )
    records = np.frombuffer(batch, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= len(CLASS_NAMES):
        raise DataFileError(
            f"{path} must hold labels from 0 to {len(CLASS_NAMES) - 1}, got {labels.max()} in record {labels.argmax()}."
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), labels.copy()


def _named(place: Path, batch: str) -> str:
    return str(place / batch) if place.is_dir() else f"{place}: {batch}"
