"""How fast chosen samples are read from disk: one by one, by one call a batch, in sorted order, several draws at once.

    ADAMCB_DATA=… python -m benchmarks.reading [--folder DIR] [--turns 15]

CIFAR-10's 50,000 training images, stored in five ways below DIR: one PNG file each, shards of tar files, Arrow files
of Hugging Face `datasets`, and HDF5 with and without compression. `pip install datasets h5py` for the last three. Draws
are `QueueBandit`'s, K = 128, with weights that differ. All ways of one storage take turns; medians of the milliseconds
for a batch: "warm" the processor's, with the files in the page cache, and "cold" by the clock, with all of them taken
out of it before every turn. What is read for several draws at once is divided by their number. Prints Markdown.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from adamcb.selection import QueueBandit
from benchmarks.timing import markdown

BATCH_SIZE, GROUP, SHARD, CHUNK = 128, 8, 1000, 64


def images() -> np.ndarray:
    """Return CIFAR-10's training images, uint8[50000, 32, 32, 3]."""
    places = [Path(place) / "cifar-10-batches-bin" for place in os.environ["ADAMCB_DATA"].split(os.pathsep)]
    folder = next(place for place in places if place.exists())
    records = [np.fromfile(folder / f"data_batch_{part}.bin", dtype=np.uint8) for part in range(1, 6)]
    pixels = np.concatenate(records).reshape(50_000, 1 + 3072)[:, 1:]
    return np.ascontiguousarray(pixels.reshape(50_000, 3, 32, 32).transpose(0, 2, 3, 1))


def decoded(file: Any) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image)


class Files:
    """One PNG file a sample, 1,000 in a folder."""

    def __init__(self, folder: Path, pixels: Callable[[], np.ndarray]) -> None:
        self.folder = folder / "png"
        if not self.folder.exists():
            for i, image in enumerate(pixels()):
                path = self.path(i)
                if i % SHARD == 0:
                    path.parent.mkdir(parents=True)
                Image.fromarray(image).save(path)
        self.files = [str(self.path(i)) for i in range(50_000)]

    def path(self, i: int) -> Path:
        return self.folder / f"{i // SHARD:03d}" / f"{i % SHARD:03d}.png"

    def __getitem__(self, i: int) -> np.ndarray:
        return decoded(self.files[i])


class Shards:
    """PNG files in tar files, as WebDataset writes them, behind an index of offsets."""

    def __init__(self, folder: Path, source: Files) -> None:
        self.folder = folder / "tar"
        if not self.folder.exists():
            self.folder.mkdir()
            for shard in range(50_000 // SHARD):
                with tarfile.open(self.folder / f"{shard:03d}.tar", "w") as file:
                    for i in range(shard * SHARD, (shard + 1) * SHARD):
                        file.add(source.files[i], arcname=f"{i:06d}.png")
        self.files = [str(path) for path in sorted(self.folder.iterdir())]
        self.open = [os.open(path, os.O_RDONLY) for path in self.files]
        self.index = []
        for shard, path in enumerate(self.files):
            with tarfile.open(path) as file:
                self.index += [(shard, member.offset_data, member.size) for member in file]

    def __getitem__(self, i: int) -> np.ndarray:
        shard, offset, size = self.index[i]
        return decoded(io.BytesIO(os.pread(self.open[shard], size, offset)))


class Arrow:
    """Hugging Face `datasets`: memory-mapped Arrow files, pixels as bytes."""

    def __init__(self, folder: Path, pixels: Callable[[], np.ndarray]) -> None:
        import datasets  # pyright: ignore[reportMissingImports]

        path = folder / "arrow"
        if not path.exists():
            table = {"pixels": [image.tobytes() for image in pixels()], "label": list(range(50_000))}
            datasets.Dataset.from_dict(table).save_to_disk(str(path), num_shards=8)
        self.data = datasets.load_from_disk(str(path))
        self.files = [str(file) for file in path.glob("*.arrow")]

    def __getitem__(self, i: int) -> Any:
        return self.data[i]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.data.__getitems__(indices)


class Table:
    """HDF5: one array, in compressed chunks of 64 images, or as it is."""

    def __init__(self, folder: Path, pixels: Callable[[], np.ndarray], *, compressed: bool) -> None:
        import h5py  # pyright: ignore[reportMissingImports]

        path = folder / ("gzip.h5" if compressed else "plain.h5")
        if not path.exists():
            options = {"chunks": (CHUNK, 32, 32, 3), "compression": "gzip"} if compressed else {}
            with h5py.File(path, "w") as file:
                file.create_dataset("pixels", data=pixels(), **options)
        self.files = [str(path)]
        self.array: Any = h5py.File(path, "r")["pixels"]

    def __getitem__(self, i: int) -> np.ndarray:
        return self.array[i]


class SortedTable(Table):
    """The same with `__getitems__`: h5py takes a list of indices that ascend, and nothing else."""

    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        order = np.argsort(indices)
        rows = self.array[np.asarray(indices)[order]]
        result: list[Any] = [None] * len(indices)
        for place, row in zip(order, rows, strict=True):
            result[place] = row
        return result


def ways(dataset: Any) -> dict[str, Callable[[list[np.ndarray]], Any]]:
    """Return the ways to read `GROUP` draws."""

    def one_by_one(draws: list[np.ndarray]) -> Any:
        return [[dataset[i] for i in draw.tolist()] for draw in draws]

    def one_by_one_sorted(draws: list[np.ndarray]) -> Any:
        return [[dataset[i] for i in np.sort(draw).tolist()] for draw in draws]

    def one_by_one_grouped(draws: list[np.ndarray]) -> Any:
        return [dataset[i] for i in np.sort(np.concatenate(draws)).tolist()]

    found = {"one by one": one_by_one, "sorted": one_by_one_sorted, f"{GROUP} draws sorted": one_by_one_grouped}
    if hasattr(dataset, "__getitems__"):
        found["one call"] = lambda draws: [dataset.__getitems__(draw.tolist()) for draw in draws]
        found["one call, sorted"] = lambda draws: [dataset.__getitems__(np.sort(draw).tolist()) for draw in draws]
        found[f"one call for {GROUP} draws, sorted"] = lambda draws: dataset.__getitems__(
            np.sort(np.concatenate(draws)).tolist()
        )
    return found


def forget(dataset: Any, draws: list[np.ndarray]) -> None:
    """Take the files out of the page cache: all of them, or those that the draws need."""
    many = isinstance(dataset, Files)
    wanted = {dataset.files[i] for draw in draws for i in draw.tolist()} if many else dataset.files
    for path in wanted:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(dataset: Any, turns: int, *, cold: bool) -> dict[str, float]:
    """Return the median seconds of a batch, by way; after three turns it may take no more than two minutes."""
    clock = time.perf_counter if cold else time.process_time
    weights = np.random.default_rng(0).gamma(0.5, size=50_000) + 0.05
    selection = QueueBandit(50_000, BATCH_SIZE, generator=torch.Generator().manual_seed(0))
    selection.weights = weights
    candidates = ways(dataset)
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for turn in range(turns):
        if turn >= 3 and time.perf_counter() - begin > 120:
            break
        draws = [selection.draw().indices for _ in range(GROUP)]
        for name, read in candidates.items():
            if cold:
                forget(dataset, draws)
            else:
                read(draws)
            start = clock()
            read(draws)
            times[name].append((clock() - start) / GROUP)
    return {name: statistics.median(values) for name, values in times.items()}


def make(folder: Path) -> dict[str, Any]:
    """Return the storages, written below `folder` if they are not there."""
    files = Files(folder, images)
    return {
        "50,000 PNG files": files,
        "50 tar files of PNG": Shards(folder, files),
        "Arrow (`datasets`)": Arrow(folder, images),
        "HDF5": SortedTable(folder, images, compressed=False),
        "HDF5, gzip": SortedTable(folder, images, compressed=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark reading chosen samples from disk.")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "adamcb-reading")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, dataset in make(options.folder).items():
        for cold in (False, True):
            found = measure(dataset, options.turns, cold=cold)
            first = found["one by one"]
            for way, seconds in found.items():
                rows.append([name, "cold" if cold else "warm", way, f"{1e3 * seconds:.3g}", f"{seconds / first:.2f}"])
                print(*rows[-1], sep=" | ", flush=True)
    print("\n" + markdown(["storage", "page cache", "read", "ms a batch", "÷ one by one"], rows))


if __name__ == "__main__":
    main()
