"""A folder with one folder of images per class.

FOLDER/train/CLASS/*.png with FOLDER/test/CLASS/*.png, or FOLDER/CLASS/*.png, of which a fifth of every class (chosen
once and for all, with a fixed seed) becomes the test set. Labels follow the sorted names of the class folders.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from adamcb.lab.tasks.datasets._images import RawImages, stratified_subset
from adamcb.lab.tasks.datasets._reading import DataFileError

logger = logging.getLogger(__name__)

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
GRAY_MODES = {"1", "L", "LA"}
DEEP_MODES = {"F", "I", "I;16", "I;16B", "I;16L", "I;16N"}
# What images of different sizes are brought to: every model takes it.
COMMON_SIZE = (32, 32)
TEST_SHARE = 0.2
SPLIT_SEED = 0
MAX_BYTES = 8 * 2**30


def load_folder(folder: Path) -> RawImages:
    """Read every image below `folder` into memory.

    Images of one size keep it; otherwise all are cropped to a square around the center and scaled to 32×32, which the
    note says, and the log. If all are gray there is one channel, otherwise three.
    """
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        class_names = _class_names(folder / "train")
        _check_test_classes(folder / "test", class_names)
        train = _list_images(folder / "train", class_names)
        test = _list_images(folder / "test", class_names, every_class=False)
    else:
        class_names = _class_names(folder)
        train, test = _split(_list_images(folder, class_names), class_names, folder)
    images, note = _read_images([path for path, _ in (*train, *test)])
    labels = torch.tensor([label for _, label in (*train, *test)])
    parts = (images[: len(train)], labels[: len(train)], images[len(train) :], labels[len(train) :])
    return RawImages(*parts, class_names=class_names, note=note)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise DataFileError(f"{folder} must hold at least two class folders, got {len(names)}.")
    return tuple(names)


def _check_test_classes(folder: Path, class_names: Sequence[str]) -> None:
    unknown = sorted(set(_class_names(folder)) - set(class_names))
    if unknown:
        raise DataFileError(f"{folder / unknown[0]} must be a class of the training images too.")


def _list_images(folder: Path, class_names: Sequence[str], *, every_class: bool = True) -> list[tuple[Path, int]]:
    listed = []
    for label, name in enumerate(class_names):
        inside = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        images = [path for path in inside if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
        if every_class and not images:
            raise DataFileError(f"{folder / name} must hold images ({', '.join(sorted(SUFFIXES))}), got none.")
        listed += [(path, label) for path in images]
    if not listed:
        raise DataFileError(f"{folder} must hold images in its class folders, got none.")
    return listed


def _split(
    listed: list[tuple[Path, int]], class_names: Sequence[str], folder: Path
) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    labels = torch.tensor([label for _, label in listed])
    counts = torch.bincount(labels)
    if counts.min() < 2:
        raise DataFileError(
            f"{folder / class_names[int(counts.argmin())]} must hold at least two images, to split off a test set."
        )
    chosen = set(stratified_subset(labels, TEST_SHARE, seed=SPLIT_SEED).tolist())
    train = [entry for index, entry in enumerate(listed) if index not in chosen]
    return train, [listed[index] for index in sorted(chosen)]


def _read_images(paths: Sequence[Path]) -> tuple[torch.Tensor, str]:
    """Return the images [n, channels, height, width] and a note if they were brought to a common size."""
    headers = [_read_header(path) for path in paths]
    sizes = {size for size, _ in headers}
    width, height = sizes.pop() if len(sizes) == 1 else COMMON_SIZE
    mode = "L" if all(mode in GRAY_MODES for _, mode in headers) else "RGB"
    shape = (len(paths), height, width, len(mode) if mode == "RGB" else 1)
    needed = 4 * int(np.prod(shape, dtype=np.int64))
    if needed > MAX_BYTES:
        raise DataFileError(
            f"{paths[0].parent.parent} must take at most {MAX_BYTES} bytes in memory, got {needed}: make the images "
            f"smaller than {width}×{height}."
        )
    pixels = np.empty(shape, dtype=np.uint8)
    for index, path in enumerate(paths):
        pixels[index] = _read_pixels(path, mode, (width, height)).reshape(shape[1:])
    note = "" if not sizes else f"Images of different sizes were cropped and scaled to {width}×{height}."
    if note:
        logger.warning(note)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), note


def _read_header(path: Path) -> tuple[tuple[int, int], str]:
    with _open_image(path) as image:
        if image.mode in DEEP_MODES:
            raise DataFileError(f"{path} must have 8 bits a channel, got an image of mode {image.mode}.")
        return image.size, image.mode


def _read_pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    with _open_image(path) as image:
        converted = image.convert(mode)
        if converted.size != size:
            converted = ImageOps.fit(converted, size)
        return np.asarray(converted)


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image; whatever Pillow finds wrong, now or while decoding, becomes an error that names the file."""
    with warnings.catch_warnings():
        # Pillow only warns of a decompression bomb up to twice its limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path) as image:
                yield image
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise DataFileError(f"{path} is too large to be decoded safely: {error}") from error
        except DataFileError:
            raise
        # Pillow's decoders raise all of these on damaged input.
        except (OSError, SyntaxError, ValueError) as error:
            raise DataFileError(f"{path} must be a readable image: {error}") from error
