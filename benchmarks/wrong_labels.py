"""How well wrong labels are found: samples(), beside the final loss and cleanlab, on labels that were made wrong.

    python -m benchmarks.wrong_labels [--datasets mnist fashion-mnist] [--seeds 3] [--epochs 10] [--out FILE.csv]
    python -m benchmarks.wrong_labels --cleanlab [--seeds 1] [--out FILE.csv]

10 % of the training labels are replaced by another class. The MLP of the lab trains on them in a loop with
`AdaptiveLoader`, Adam and cosine decay. All rankings are read after the same training, so one run gives them all.
cleanlab gets the predictions of 3-fold cross-validation with plain shuffled batches, as its documents advise: three
trainings on two thirds of the data each. Rows are appended to FILE.csv as they come; runs that it has are not repeated.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from adamcb import AdaptiveLoader, UniformSelection
from adamcb.lab.tasks.datasets import ImageData, load_dataset
from adamcb.lab.tasks.label_noise import with_wrong_labels
from adamcb.lab.tasks.models import build_model
from benchmarks.timing import markdown

SHARE, BATCH_SIZE, FOLDS = 0.1, 128, 3
PLACES = (100, 300, 600)
COLUMNS = ("dataset", "seed", "epochs", "ranking", *(f"precision_at_{k}" for k in PLACES), "recall", "cpu_seconds")
Row = dict[str, str | int | float]


def train(
    dataset: Dataset, data: ImageData, seed: int, epochs: int, *, plain: bool
) -> tuple[nn.Module, AdaptiveLoader]:
    """Return a model trained on `dataset`, and the loader that it was trained with."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model("mlp", image_shape=data.image_shape, num_classes=data.num_classes)
    size = len(dataset)  # pyright: ignore[reportArgumentType]
    generator = torch.Generator().manual_seed(seed)
    selection = UniformSelection(size, BATCH_SIZE, generator=generator) if plain else None
    loader = AdaptiveLoader(model, dataset, BATCH_SIZE, selection=selection, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loader.weigh(F.cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
            schedule.step()
    return model.eval(), loader


@torch.no_grad()
def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(part) for part in images.split(4096)])


def rankings(noisy: ImageData, seed: int, epochs: int) -> Iterable[tuple[str, np.ndarray]]:
    """Return suspicion by each ranking, float[n] in the order of the dataset, after one training."""
    model, loader = train(noisy.train, noisy, seed, epochs, plain=False)
    table = loader.samples()
    order = np.argsort(table.index)
    yield "samples(), suspicion", table.suspicion[order]
    yield "times chosen", table.count[order]
    yield "mean score", table.mean_score[order]
    images, labels = noisy.train.tensors
    yield "final loss", F.cross_entropy(logits_of(model, images), labels, reduction="none").numpy()


def cleanlab_ranking(noisy: ImageData, seed: int, epochs: int) -> Iterable[tuple[str, np.ndarray]]:
    """Return suspicion by cleanlab, from predictions for samples that the model was not trained on."""
    from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportMissingImports]

    images, labels = noisy.train.tensors
    folds = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).chunk(FOLDS)
    probs = torch.empty(len(labels), noisy.num_classes)
    for held_out in folds:
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[held_out] = False
        part = Subset(noisy.train, rest.nonzero().flatten().tolist())
        model, _ = train(part, noisy, seed, epochs, plain=True)
        probs[held_out] = logits_of(model, images[held_out]).softmax(1)
    yield "cleanlab, 3 folds", -get_label_quality_scores(labels.numpy(), probs.double().numpy())


def row_of(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Return precision at the first 100, 300 and 600, and recall when as many are looked at as are wrong."""
    found = wrong[np.argsort(-suspicion, kind="stable")]
    precision = {f"precision_at_{k}": round(float(found[:k].mean()), 4) for k in PLACES}
    return {**precision, "recall": round(float(found[: wrong.sum()].mean()), 4)}


def measure(dataset: str, seed: int, epochs: int, *, cleanlab: bool) -> list[Row]:
    data = load_dataset(dataset)
    noisy = with_wrong_labels(data, SHARE, seed)
    wrong = (noisy.train.tensors[1] != data.train.tensors[1]).numpy()
    start = time.process_time()
    found = list((cleanlab_ranking if cleanlab else rankings)(noisy, seed, epochs))
    names: Row = {"dataset": dataset, "seed": seed, "epochs": epochs}
    seconds = round(time.process_time() - start, 1)
    return [{**names, "ranking": name, **row_of(values, wrong), "cpu_seconds": seconds} for name, values in found]


def read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]


def append_rows(path: Path, rows: list[Row]) -> None:
    begun = path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not begun:
            writer.writeheader()
        writer.writerows(rows)


def report(rows: list[Row]) -> str:
    """Return means over seeds, and in brackets the smallest and the largest."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row["dataset"]), str(row["epochs"]), str(row["ranking"])), []).append(row)
    lines = []
    for key, group in groups.items():
        values = [[float(row[name]) for row in group] for name in COLUMNS[4:8]]
        cells = [f"{statistics.mean(v):.2f} ({min(v):.2f}–{max(v):.2f})" for v in values]
        lines.append([*key, str(len(group)), *cells])
    return markdown(["data", "epochs", "ranking", "seeds", *(f"at {k}" for k in PLACES), "recall"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how well wrong labels are found.")
    parser.add_argument("--datasets", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cleanlab", action="store_true", help="rank by cleanlab, which must be installed")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/wrong-labels.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for dataset in options.datasets:
            wanted = (dataset, str(seed), str(options.epochs), options.cleanlab)
            known = {
                (r["dataset"], str(r["seed"]), str(r["epochs"]), str(r["ranking"]).startswith("cleanlab"))
                for r in read_rows(options.out)
            }
            if wanted not in known:
                append_rows(options.out, measure(dataset, seed, options.epochs, cleanlab=options.cleanlab))
    print(report(read_rows(options.out)))


if __name__ == "__main__":
    main()
