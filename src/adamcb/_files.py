"""Files that are written whole or not at all, and refused when their content has changed since.

A file is written as a draft in its own folder, and takes its name when it is complete and on the disk. Every draft has
a name of its own, so two processes that write the same file do not meet: the last complete one wins. The writer holds a
lock on its draft. A draft that nobody holds is what a crash left behind, and the next write in the folder removes it.

Archives (checkpoints, npz files) end with an id and a SHA-256 digest of everything before it, as the comment that a zip
file may have. JSON files begin with a digest of everything behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows, where drafts of a crashed process stay
    fcntl = None

DRAFT = ".adamcb-unfinished-"
_BLOCK = 1 << 20
_SEAL = re.compile(rb"adamcb save ([0-9a-f]{32}) sha256 ([0-9a-f]{64})")
_SEAL_SIZE = len("adamcb save  sha256 ") + 32 + 64
_JSON_HEAD = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",')
_JSON_HEAD_SIZE = len('{\n "sha256": "",') + 64


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, keep: bool = True) -> Iterator[Path]:
    """Give a place to write to, in the folder of `path`. It becomes `path` if the body ends without an error.

    A link stays a link, and an existing file keeps its permissions.

    Args:
        path: A regular file, or nothing yet.
        keep: False: remove the draft at the end, to see whether the file could be written.

    Raises:
        OSError: If `path` is no regular file, or cannot be written. What was there is as it was.
    """
    place = Path(os.path.realpath(path))
    before = _stat_regular(place)
    handle, draft = _open_draft(place)
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        if before is not None:
            _keep_permissions(draft, before)
        if keep:
            if fcntl is None:  # an open file cannot be replaced there
                os.close(handle)
                handle = None
            draft.replace(place)
            _sync_folder(place.parent)
    finally:
        draft.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)
    sweep(place.parent)


def sweep(folder: Path) -> None:
    """Remove the drafts that crashed processes left in `folder`."""
    for draft in folder.glob(f"{DRAFT}*"):
        with contextlib.suppress(OSError):
            handle = os.open(draft, os.O_RDWR)
            try:
                if _lock(handle):
                    draft.unlink()
            finally:
                os.close(handle)


@contextlib.contextmanager
def folder_lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait until nobody else holds the folder of `path`, and hold it. Does nothing where the system has no locks."""
    handle = None
    try:
        with contextlib.suppress(OSError):
            if fcntl is not None:
                handle = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def new_save_id() -> str:
    """Return the id of one save, which all of its files carry."""
    return secrets.token_hex(16)


def seal_archive(path: Path, save_id: str) -> None:
    """Append `save_id` and the digest to a zip file, as its comment."""
    with path.open("rb+") as file:
        file.seek(-2, os.SEEK_END)
        if file.read() != b"\0\0":
            raise ValueError(f"`path` must be a zip file without a comment, got path={str(path)!r}.")
        file.seek(-2, os.SEEK_END)
        file.write(_SEAL_SIZE.to_bytes(2, "little"))
        file.write(f"adamcb save {save_id} sha256 ".encode())
        size = file.tell()
        file.seek(0)
        digest = _digest(file, size)
        file.write(digest.encode())


def check_archive(file: BinaryIO) -> str:
    """Return the save id of an archive, which is then at its start.

    Raises:
        ValueError: If its content has changed, or it never had a digest.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _SEAL_SIZE))
    found = _SEAL.fullmatch(file.read())
    if found is None:
        raise ValueError("it does not end with a digest: it is truncated, of an older format, or something else.")
    file.seek(0)
    if _digest(file, size - 64).encode() != found[2]:
        raise ValueError("its content is not what was written: the SHA-256 digest differs.")
    file.seek(0)
    return found[1].decode()


def json_bytes(content: dict[str, Any]) -> bytes:
    """Return `content` as JSON that begins with its digest. Numbers are read back exactly."""
    if not content or "sha256" in content:
        raise ValueError("`content` must be a dict with some keys, none of them sha256.")
    rest = (json.dumps(content, indent=1, allow_nan=False)[1:] + "\n").encode()
    return f'{{\n "sha256": "{hashlib.sha256(rest).hexdigest()}",'.encode() + rest


def json_content(data: bytes) -> dict[str, Any]:
    """Return what `json_bytes` was given.

    Raises:
        ValueError: If the bytes have changed, or never had a digest.
    """
    found = _JSON_HEAD.match(data)
    if found is None:
        raise ValueError("it does not begin with a digest: it is truncated, of an older version, or something else.")
    if hashlib.sha256(data[_JSON_HEAD_SIZE:]).hexdigest().encode() != found[1]:
        raise ValueError("its content is not what was written: the SHA-256 digest differs.")
    content = json.loads(data)
    del content["sha256"]
    return content


def has_json_digest(data: bytes) -> bool:
    """Tell whether JSON begins with a digest, right or wrong."""
    return _JSON_HEAD.match(data) is not None


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return _digest(file, os.fstat(file.fileno()).st_size)


def _digest(file: BinaryIO, size: int) -> str:
    """Return the digest of the next `size` bytes."""
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def _stat_regular(place: Path) -> os.stat_result | None:
    """Return what the system knows of a regular file; None if there is nothing."""
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"only a regular file may be replaced, and {place} is none.")
    if not os.access(place, os.W_OK):
        raise PermissionError(f"{place} is read-only.")
    return found


def _open_draft(place: Path) -> tuple[int, Path]:
    """Create a draft, and hold it."""
    while True:
        # The suffix is what figures and arrays are written by.
        draft = place.with_name(f"{DRAFT}{secrets.token_hex(8)}{place.suffix[:16]}")
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # and the usual mask
        if _lock(handle) is not False and draft.exists():  # or it is swept before it is locked
            return handle, draft
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file. Return False if somebody else holds it, and None where the system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _keep_permissions(draft: Path, before: os.stat_result) -> None:
    with contextlib.suppress(OSError, AttributeError):  # only the superuser may give files away
        os.chown(draft, before.st_uid, before.st_gid)
    draft.chmod(stat.S_IMODE(before.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
