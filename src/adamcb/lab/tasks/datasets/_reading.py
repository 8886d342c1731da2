"""Bytes from files that may be damaged, or meant to do harm."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

GZIP_MAGIC = b"\x1f\x8b"


class DataFileError(ValueError):
    """A data file is damaged, or is not what its place says it is. The message begins with its path."""


@contextmanager
def open_plain_or_gzip(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, through gzip if its first bytes say so (names lie); damage becomes `DataFileError`."""
    with damage_named(path), path.open("rb") as plain:
        if plain.peek(2)[:2] != GZIP_MAGIC:
            yield plain
            return
        with gzip.open(plain, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what gzip and tar raise on damaged input into a `DataFileError` that names the file."""
    try:
        yield
    except EOFError as error:
        raise DataFileError(f"{path} is truncated: the compressed data ends too early.") from error
    except (gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise DataFileError(f"{path} is damaged: {error}.") from error


class BoundedReader(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes, so that a decompression bomb cannot fill the memory."""

    def __init__(self, stream: BinaryIO, limit: int, path: Path) -> None:
        super().__init__()
        self._stream, self._left, self._limit, self._path = stream, limit, limit, path

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or raise `DataFileError` when the limit is passed."""
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        data = self._stream.read(wanted)
        self._left -= len(data)
        if self._left < 0:
            raise DataFileError(f"{self._path} must decompress to at most {self._limit} bytes, but there are more.")
        return data
