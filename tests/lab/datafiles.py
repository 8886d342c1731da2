"""Small data files made by hand, and the sources that expect them."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from adamcb.lab.tasks.datasets._cifar import CIFAR10, CifarSource
from adamcb.lab.tasks.datasets._idx import MNIST, IdxFile, IdxSource

RECORD = 3073


def idx_bytes(array: np.ndarray, *, magic: int | None = None, shape: tuple[int, ...] | None = None) -> bytes:
    shape = array.shape if shape is None else shape
    magic = 0x0800 + len(shape) if magic is None else magic
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + array.astype(np.uint8).tobytes()


def small_mnist(train: int = 20, test: int = 10) -> dict[str, bytes]:
    """The four files of a set whose pixel (n, row, column) is (n + 28·row + column) mod 256 and label n mod 10."""
    files = {}
    for split, count in (("train", train), ("t10k", test)):
        images = (np.arange(count)[:, None] + np.arange(784)).reshape(count, 28, 28) % 256
        files[f"{split}-images-idx3-ubyte"] = idx_bytes(images)
        files[f"{split}-labels-idx1-ubyte"] = idx_bytes(np.arange(count) % 10)
    return files


def idx_source(files: Mapping[str, bytes], *, base_url: str = "http://127.0.0.1:9/") -> IdxSource:
    """A source that expects exactly these files."""
    entries = [
        IdxFile(name, hashlib.sha256(data).hexdigest(), hashlib.md5(pack(data)).hexdigest())
        for name, data in files.items()
    ]
    return replace(MNIST, files=tuple(entries), base_url=base_url)


def pack(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def small_cifar(records: int = 10) -> dict[str, bytes]:
    """Six batches; in batch b the pixel (n, channel, row, column) is 100·channel + 32·row + column + b, mod 256."""
    batches = {}
    for number, name in enumerate(CIFAR10.sha256):
        planes = 100 * np.arange(3)[:, None] + np.arange(1024) + number
        rows = np.tile(planes.reshape(-1) % 256, (records, 1))
        labels = np.arange(records)[:, None] % 10
        batches[name] = np.hstack([labels, rows]).astype(np.uint8).tobytes()
    return batches


def cifar_source(batches: Mapping[str, bytes]) -> CifarSource:
    """A source that expects exactly these batches."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in batches.items()}
    records = len(next(iter(batches.values()))) // RECORD
    return replace(CIFAR10, sha256=sums, records_per_batch=records)


def tar_bytes(members: Mapping[str, bytes] | list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """An uncompressed tar archive of named files, or of members as given."""
    if isinstance(members, Mapping):
        members = [(tarfile.TarInfo(name), data) for name, data in members.items()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def cifar_tar(batches: Mapping[str, bytes]) -> bytes:
    return pack(tar_bytes({f"cifar-10-batches-bin/{name}": data for name, data in batches.items()}))


@contextmanager
def peak_memory_below(limit: int) -> Iterator[None]:
    """Fail if Python allocates more than `limit` bytes at a time inside the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"allocated {peak} bytes"
