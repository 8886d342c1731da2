import functools
import http.server
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from adamcb.lab.tasks.datasets import DataFileError
from adamcb.lab.tasks.datasets._idx import MAX_BYTES, load_idx, read_idx
from tests.lab.datafiles import idx_bytes, idx_source, pack, peak_memory_below, small_mnist, write_files

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def load_small(folder: Path, files: dict[str, bytes]):
    """Load with a source that accepts whatever bytes these are, so that only their structure is judged."""
    write_files(folder / "mnist", files)
    return load_idx(idx_source(files), [folder], download=False)


@pytest.mark.parametrize("squeeze", [lambda data: data, pack], ids=["plain", "gzip"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_arrays_come_back_whatever_the_name_says(tmp_path, squeeze, suffix):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / f"some-idx3-ubyte{suffix}"
    path.write_bytes(squeeze(idx_bytes(array)))
    read, _ = read_idx(path, dims=3)
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", ""])
@pytest.mark.parametrize("rename", [str, lambda name: f"{name}.gz", lambda name: name.replace("-idx", ".idx")])
def test_all_usual_places_and_spellings_are_found(tmp_path, place, rename):
    files = small_mnist()
    write_files(tmp_path / place, {rename(name): data for name, data in files.items()})
    raw = load_idx(idx_source(files), [tmp_path], download=False)
    assert raw.train_images.shape == (20, 1, 28, 28)
    assert raw.test_images.shape == (10, 1, 28, 28)
    assert raw.train_images[3, 0, 2, 5] == 3 + 2 * 28 + 5
    assert raw.train_labels.tolist() == [n % 10 for n in range(20)]
    assert raw.train_labels.dtype == torch.int64


def test_earlier_places_come_first(tmp_path):
    files = small_mnist()
    write_files(tmp_path / "first" / "mnist", files)
    write_files(tmp_path / "second" / "mnist", {name: b"damaged all over" for name in files})
    load_idx(idx_source(files), [tmp_path / "first", tmp_path / "second"], download=False)
    with pytest.raises(DataFileError, match="second/mnist/train-images-idx3-ubyte must begin with the magic"):
        load_idx(idx_source(files), [tmp_path / "second", tmp_path / "first"], download=False)


GOOD_IMAGES = small_mnist()[IMAGES]
DAMAGE = {
    "empty": (b"", "is truncated: its header needs 16 bytes, got 0"),
    "half a header": (GOOD_IMAGES[:9], "is truncated: its header needs 16 bytes, got 9"),
    "cut": (GOOD_IMAGES[:-1], "is truncated: its header declares 20×28×28 = 15680 bytes, got 15679"),
    "too long": (GOOD_IMAGES + b"\0", "must end after the 20×28×28 = 15680 bytes"),
    "labels for images": (small_mnist(8000)[LABELS], "must begin with the magic number 0x00000803, got 0x00000801"),
    "floats": (
        struct.pack(">I", 0x0D03) + GOOD_IMAGES[4:],
        "must begin with the magic number 0x00000803, got 0x00000d03",
    ),
    "cut gzip": (pack(GOOD_IMAGES)[:-9], "is truncated: the compressed data ends too early"),
    "gzip with a bad checksum": (pack(GOOD_IMAGES)[:-8] + b"\0" * 8, "is damaged: CRC check failed"),
    "gzip with bad data": (pack(GOOD_IMAGES)[:12] + b"\xff" * 40, "is damaged: Error -3"),
    "gzip with junk after it": (pack(GOOD_IMAGES) + b"junk", "is damaged: Not a gzipped file"),
    "a header of 4 GB": (struct.pack(">4I", 0x0803, 5_000_000, 28, 28), f"must declare at most {MAX_BYTES} bytes"),
    "sizes that overflow": (struct.pack(">4I", 0x0803, *[2**32 - 1] * 3), f"must declare at most {MAX_BYTES} bytes"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_refused_by_name(tmp_path, data, message):
    with pytest.raises(DataFileError, match=f"{IMAGES} {message}"):
        load_small(tmp_path, small_mnist() | {IMAGES: data})


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    """128 MB of zeros behind an honest-looking header: only what the header declares is read."""
    bomb = pack(GOOD_IMAGES + bytes(2**27))
    write_files(tmp_path / "mnist", small_mnist() | {IMAGES: bomb})
    with peak_memory_below(2**22), pytest.raises(DataFileError, match="must end after the 20×28×28 = 15680 bytes"):
        load_idx(idx_source(small_mnist()), [tmp_path], download=False)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (LABELS, np.arange(19) % 10, "must have one label for each of the 20 images in train-images-.*, got 19"),
        (LABELS, np.array([0] * 7 + [10] + [3] * 12), "must hold labels from 0 to 9, got 10 at 7"),
        (IMAGES, np.zeros((20, 28, 27)), r"must hold images of size \(28, 28\), got \(28, 27\)"),
    ],
)
def test_contents_that_disagree_are_refused(tmp_path, name, array, message):
    with pytest.raises(DataFileError, match=f"{name} {message}"):
        load_small(tmp_path, small_mnist() | {name: idx_bytes(array)})


def test_empty_sets_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="t10k-labels-idx1-ubyte must hold at least one label, got 0"):
        load_small(tmp_path, small_mnist(test=0))


@pytest.mark.parametrize("name", small_mnist())
def test_one_changed_byte_in_any_file_is_noticed(tmp_path, name):
    files = small_mnist()
    changed = bytearray(files[name])
    changed[-1] ^= 1
    write_files(tmp_path / "mnist", files | {name: bytes(changed)})
    with pytest.raises(DataFileError, match=f"{name} must have the SHA-256 [0-9a-f]{{64}} when decompressed, got"):
        load_idx(idx_source(files), [tmp_path], download=False)


def test_missing_files_are_listed_with_their_places(tmp_path):
    source = idx_source(small_mnist())
    with pytest.raises(FileNotFoundError) as caught:
        load_idx(source, [tmp_path / "a", tmp_path / "b"], download=False)
    message = str(caught.value)
    assert "The dataset 'mnist' was not found, and downloading is switched off." in message
    for file in source.files:
        assert f"{file.name}.gz   (from http://127.0.0.1:9/{file.name}.gz)" in message
    assert str(tmp_path / "a" / "mnist") in message
    assert str(tmp_path / "b" / "mnist") in message


def test_the_one_missing_file_is_named(tmp_path):
    files = small_mnist()
    del files[LABELS]
    write_files(tmp_path / "mnist", files)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/mnist lacks {LABELS}\\."):
        load_idx(idx_source(small_mnist()), [tmp_path], download=False)


def test_without_a_network_the_error_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"(?s)the download failed \(.*train-images-idx3-ubyte.gz.*into one of"):
        load_idx(idx_source(small_mnist()), [tmp_path])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which a real server gives out its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_missing_files_are_fetched_into_the_cache_and_found_there(tmp_path, served):
    folder, address = served
    files = small_mnist()
    source = idx_source(files, base_url=address)
    write_files(folder, {f"{name}.gz": pack(data) for name, data in files.items()})
    cache = tmp_path / "user-cache" / "adamcb"
    fetched = load_idx(source, [tmp_path / "nothing", cache])
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(f"{name}.gz" for name in files)
    again = load_idx(source, [tmp_path / "nothing", cache], download=False)
    assert torch.equal(fetched.train_images, again.train_images)


def test_a_download_with_the_wrong_checksum_is_not_kept(tmp_path, served):
    folder, address = served
    files = small_mnist()
    write_files(folder, {f"{name}.gz": pack(data + b"!") for name, data in files.items()})
    with pytest.raises(FileNotFoundError, match="the download failed .*hash"):
        load_idx(idx_source(files, base_url=address), [tmp_path / "nothing"])
    assert not list((tmp_path / "user-cache").rglob("*idx*"))
