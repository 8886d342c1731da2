"""MNIST and Fashion-MNIST, in the IDX format: a magic number, big-endian sizes, then bytes; plain or gzip."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adamcb.lab.tasks.datasets._images import RawImages
from adamcb.lab.tasks.datasets._places import RemoteFile, find_or_fetch
from adamcb.lab.tasks.datasets._reading import DataFileError, open_plain_or_gzip

# The largest file of the two sets decompresses to 47 MB; a header that declares more than this is not believed.
MAX_BYTES = 2**30


@dataclass(frozen=True)
class IdxFile:
    """One of the four files: its name without .gz, the SHA-256 of its decompressed bytes, the MD5 of the .gz."""

    name: str
    sha256: str
    gzip_md5: str


@dataclass(frozen=True)
class IdxSource:
    """A dataset of four IDX files: training images and labels, test images and labels, in that order."""

    name: str
    folders: tuple[str, ...]
    base_url: str
    files: tuple[IdxFile, IdxFile, IdxFile, IdxFile]
    class_names: tuple[str, ...]
    image_size: tuple[int, int] = (28, 28)


MNIST = IdxSource(
    name="mnist",
    folders=("mnist", "MNIST/raw", ""),
    base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    files=(
        IdxFile(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "d53e105ee54ea40749a09fcbcd1e9432",
        ),
        IdxFile(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "9fb629c4189551a2d022fa330f9573f3",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    class_names=tuple("0123456789"),
)
FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw", ""),
    base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files=(
        IdxFile(
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "25c81989df183df01b3e8a0aad5dffbe",
        ),
        IdxFile(
            "t10k-images-idx3-ubyte",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "bef4ecab320f06d8554ea6380940ec79",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)


def load_idx(source: IdxSource, roots: Sequence[Path], *, download: bool = True) -> RawImages:
    """Find (or fetch), read and verify the four files of `source`."""
    remote = [RemoteFile(f"{source.base_url}{file.name}.gz", f"md5:{file.gzip_md5}") for file in source.files]
    paths = find_or_fetch(
        source.name,
        lambda root: _find_files(root, source),
        roots,
        remote,
        subfolder=source.folders[0],
        download=download,
        hint=_incomplete_hint(roots, source),
    )
    arrays = [_read_verified(path, file) for path, file in zip(paths, source.files, strict=True)]
    train_images, train_labels = _check_split(paths[0], arrays[0], paths[1], arrays[1], source)
    test_images, test_labels = _check_split(paths[2], arrays[2], paths[3], arrays[3], source)
    return RawImages(train_images, train_labels, test_images, test_labels, source.class_names)


def read_idx(path: Path, *, dims: int) -> tuple[np.ndarray, str]:
    """Return the uint8 array of an IDX file and the SHA-256 of its decompressed bytes.

    Never reads more than the header declares, and refuses a header that declares more than `MAX_BYTES`.
    """
    with open_plain_or_gzip(path) as stream:
        header = stream.read(4 + 4 * dims)
        if len(header) < 4 + 4 * dims:
            raise DataFileError(f"{path} is truncated: its header needs {4 + 4 * dims} bytes, got {len(header)}.")
        magic, *shape = struct.unpack(f">{1 + dims}I", header)
        # Two zero bytes, 8 for unsigned bytes, then the number of dimensions.
        if magic != 0x0800 + dims:
            raise DataFileError(f"{path} must begin with the magic number {0x0800 + dims:#010x}, got {magic:#010x}.")
        size = math.prod(shape)
        sizes = "×".join(map(str, shape))
        if size > MAX_BYTES:
            raise DataFileError(f"{path} must declare at most {MAX_BYTES} bytes, got {sizes} = {size}.")
        # One byte more than declared shows trailing data, and lets gzip reach and check its checksum.
        payload = bytearray(stream.read(size + 1))
    if len(payload) < size:
        raise DataFileError(f"{path} is truncated: its header declares {sizes} = {size} bytes, got {len(payload)}.")
    if len(payload) > size:
        raise DataFileError(f"{path} must end after the {sizes} = {size} bytes that its header declares; it goes on.")
    digest = hashlib.sha256(header)
    digest.update(payload)
    return np.frombuffer(payload, dtype=np.uint8).reshape(shape), digest.hexdigest()


def _find_files(root: Path, source: IdxSource) -> list[Path] | None:
    """Return the paths of all four files in one of the source's folders below `root`, or None."""
    for folder in source.folders:
        found = [_find_file(root / folder, file.name) for file in source.files]
        paths = [path for path in found if path is not None]
        if len(paths) == len(source.files):
            return paths
    return None


def _incomplete_hint(roots: Sequence[Path], source: IdxSource) -> str:
    for folder in (root / name for root in roots for name in source.folders):
        missing = [file.name for file in source.files if _find_file(folder, file.name) is None]
        if 0 < len(missing) < len(source.files):
            return f"{folder} lacks {', '.join(missing)}."
    return ""


def _find_file(folder: Path, name: str) -> Path | None:
    # Some copies are spelled train-images.idx3-ubyte.
    for stem in (name, name.replace("-idx", ".idx")):
        for path in (folder / stem, folder / f"{stem}.gz"):
            if path.is_file():
                return path
    return None


def _read_verified(path: Path, file: IdxFile) -> np.ndarray:
    array, sha256 = read_idx(path, dims=3 if "idx3" in file.name else 1)
    if sha256 != file.sha256:
        raise DataFileError(
            f"{path} must have the SHA-256 {file.sha256} when decompressed, got {sha256}: it is damaged, or the file "
            "of another dataset."
        )
    return array


def _check_split(
    images_path: Path, images: np.ndarray, labels_path: Path, labels: np.ndarray, source: IdxSource
) -> tuple[Tensor, Tensor]:
    """Return images [n, 1, height, width] and labels [n] after checking one against the other."""
    if images.shape[1:] != source.image_size:
        raise DataFileError(f"{images_path} must hold images of size {source.image_size}, got {images.shape[1:]}.")
    if len(images) != len(labels):
        raise DataFileError(
            f"{labels_path} must have one label for each of the {len(images)} images in {images_path.name}, "
            f"got {len(labels)}."
        )
    if len(labels) == 0:
        raise DataFileError(f"{labels_path} must hold at least one label, got 0.")
    highest = len(source.class_names) - 1
    if labels.max() > highest:
        raise DataFileError(
            f"{labels_path} must hold labels from 0 to {highest}, got {labels.max()} at {labels.argmax()}."
        )
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()
