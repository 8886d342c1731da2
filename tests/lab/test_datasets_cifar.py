import functools
import logging
import pickle
import tarfile
from pathlib import Path

import pytest
import torch

from adamcb.lab.tasks.datasets import DataFileError
from adamcb.lab.tasks.datasets._cifar import CIFAR10, load_cifar10
from tests.lab.datafiles import (
    RECORD,
    cifar_source,
    cifar_tar,
    pack,
    peak_memory_below,
    small_cifar,
    tar_bytes,
    write_files,
)

ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES = small_cifar()
SOURCE = cifar_source(BATCHES)
load_small = functools.partial(load_cifar10, SOURCE, download=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def check_contents(raw) -> None:
    assert raw.train_images.shape == (50, 3, 32, 32)
    assert raw.test_images.shape == (10, 3, 32, 32)
    # The third training batch, its first record: blue, row 4, column 7.
    assert raw.train_images[20, 2, 4, 7] == (200 + 4 * 32 + 7 + 2) % 256
    assert raw.test_images[0, 0, 0, 0] == 5
    assert raw.train_labels.tolist() == list(range(10)) * 5
    assert raw.train_labels.dtype == torch.int64


@pytest.mark.parametrize("folder", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", ""])
def test_batches_are_read_from_the_usual_folders(tmp_path, folder):
    write_files(tmp_path / folder, BATCHES | {"batches.meta.txt": b"airplane\n"})
    raw = load_small([tmp_path])
    check_contents(raw)
    assert raw.note == ""


@pytest.mark.parametrize("folder", ["cifar10", ""])
def test_batches_are_read_from_the_archive(tmp_path, folder):
    write_files(tmp_path / folder, {ARCHIVE: cifar_tar({"readme.html": b"<p>", **BATCHES})})
    check_contents(load_small([tmp_path]))
    assert [path.name for path in tmp_path.rglob("*.bin")] == []


def test_an_unverified_copy_is_used_with_a_note(tmp_path, caplog):
    changed = bytearray(BATCHES["data_batch_2.bin"])
    changed[5] ^= 1
    write_files(tmp_path / "cifar-10-batches-bin", BATCHES | {"data_batch_2.bin": bytes(changed)})
    with caplog.at_level(logging.WARNING):
        raw = load_small([tmp_path])
    assert "is not the standard copy: 1 of 6 files have another SHA-256 (data_batch_2.bin first)" in raw.note
    assert caplog.messages == [raw.note]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must have 10 records of 3073 = 30730 bytes, got 0 bytes: it is truncated"),
        (BATCHES["test_batch.bin"][:-1], "got 30729 bytes: it is truncated"),
        (BATCHES["test_batch.bin"][:-RECORD], "got 27657 bytes: it is truncated"),
        (BATCHES["test_batch.bin"] + b"\0", "must have 10 records of 3073 = 30730 bytes, got more"),
        (b"\x0a" + BATCHES["test_batch.bin"][1:], "must hold labels from 0 to 9, got 10 in record 0"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_damaged_batches_are_refused_by_name(tmp_path, data, message, packed):
    batches = BATCHES | {"test_batch.bin": data}
    if packed:
        write_files(tmp_path, {ARCHIVE: cifar_tar(batches)})
    else:
        write_files(tmp_path / "cifar-10-batches-bin", batches)
    with pytest.raises(DataFileError, match=f"test_batch.bin .*{message}"):
        load_small([tmp_path])


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


GOOD = [(f"cifar-10-batches-bin/{name}", data) for name, data in BATCHES.items()]
GOOD_TAR = cifar_tar(BATCHES)
ODD_MEMBERS = {
    "parent": (member("../evil.bin"), "must hold relative names without '..', got '../evil.bin'"),
    "hidden parent": (member("a/../../test_batch.bin"), "must hold relative names without '..'"),
    "absolute": (member("/etc/passwd"), "must hold relative names without '..', got '/etc/passwd'"),
    "backslash": (member("..\\evil.bin"), "must hold relative names without '..'"),
    "symbolic link": (member("x/data_batch_1.bin", tarfile.SYMTYPE, "/etc/passwd"), "got the link or device"),
    "hard link": (member("x/data_batch_1.bin", tarfile.LNKTYPE, "other"), "got the link or device"),
    "device": (member("null", tarfile.CHRTYPE), "got the link or device 'null'"),
    "pipe": (member("pipe", tarfile.FIFOTYPE), "got the link or device 'pipe'"),
    "twice": (member("other/test_batch.bin"), "must hold test_batch.bin once, .* again: other/test_batch.bin"),
}


@pytest.mark.parametrize(("odd", "message"), ODD_MEMBERS.values(), ids=ODD_MEMBERS.keys())
def test_archives_with_odd_members_are_refused(tmp_path, odd, message):
    members = [(member(name), data) for name, data in GOOD]
    write_files(tmp_path, {ARCHIVE: pack(tar_bytes([*members, (odd, b"")]))})
    with pytest.raises(DataFileError, match=f"{ARCHIVE} .*{message}"):
        load_small([tmp_path])


BAD_ARCHIVES = {
    "empty": (b"", "must be a gzip-compressed tar archive, got other first bytes"),
    "not compressed": (tar_bytes(BATCHES), "must be a gzip-compressed tar archive"),
    "gzip of something else": (pack(b"hello" * 1000), "is damaged: "),
    "cut": (GOOD_TAR[: len(GOOD_TAR) // 2], "is truncated: the compressed data ends too early"),
    "without its end": (GOOD_TAR[:-8], "is truncated: the compressed data ends too early"),
    "bad checksum": (GOOD_TAR[:-8] + b"\0" * 8, "is damaged: CRC check failed"),
    "tar cut inside": (pack(tar_bytes(BATCHES)[:40_000]), "is (damaged|truncated)"),
    "a batch missing": (cifar_tar(dict(list(BATCHES.items())[:-2])), "it lacks data_batch_5.bin, test_batch.bin"),
}


@pytest.mark.parametrize(("data", "message"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES.keys())
def test_damaged_archives_are_refused(tmp_path, data, message):
    write_files(tmp_path, {ARCHIVE: data})
    with pytest.raises(DataFileError, match=f"{ARCHIVE} .*{message}"):
        load_small([tmp_path])


@pytest.mark.parametrize("where", ["in a batch", "in another member", "behind the end"])
def test_a_decompression_bomb_is_not_unpacked(tmp_path, where):
    zeros = bytes(2**26)
    members = dict(GOOD)
    if where == "in a batch":
        members["cifar-10-batches-bin/test_batch.bin"] += zeros
    elif where == "in another member":
        members["notes.txt"] = zeros
    tail = zeros if where == "behind the end" else b""
    write_files(tmp_path, {ARCHIVE: pack(tar_bytes(members) + tail)})
    with peak_memory_below(2**23), pytest.raises(DataFileError, match="must decompress to at most 1263686 bytes"):
        load_small([tmp_path])


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_the_pickled_version_is_never_loaded(tmp_path):
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    names = ("data_batch_1", "test_batch", "batches.meta")
    archive = pack(tar_bytes({f"cifar-10-batches-py/{name}": trap for name in names}))
    write_files(tmp_path / "as-archive", {ARCHIVE: archive})
    with pytest.raises(DataFileError, match=f"{ARCHIVE} is the Python version of CIFAR-10, a pickle, which is never"):
        load_small([tmp_path / "as-archive"])
    write_files(tmp_path / "as-folder" / "cifar-10-batches-py", dict.fromkeys(names, trap))
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py is the Python version, a pickle, which is never"):
        load_small([tmp_path / "as-folder"])
    assert not sprung.exists()


def test_missing_batches_are_named_with_their_place(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", dict(list(BATCHES.items())[:-1]))
    with pytest.raises(FileNotFoundError) as caught:
        load_small([tmp_path])
    message = str(caught.value)
    assert f"{tmp_path / 'cifar-10-batches-bin'} lacks test_batch.bin." in message
    assert "cifar-10-binary.tar.gz   (from https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz)" in message


def test_the_standard_batches_have_ten_thousand_records(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", BATCHES)
    with pytest.raises(DataFileError, match="data_batch_1.bin must have 10000 records of 3073 = 30730000 bytes"):
        load_cifar10(CIFAR10, [tmp_path], download=False)
