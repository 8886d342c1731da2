"""A result folder for the report's tests, made by really training on scikit-learn's digits.

The same folder can be had for looking at: python -m tests.lab.report_folder DIR [EPOCHS SEEDS].
"""

from __future__ import annotations

import atexit
import csv
import functools
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from adamcb import AdamCB, AdamX, CombinatorialBandit, ReplacementBandit, UniformSelection
from adamcb.lab.tasks.datasets import ImageData, load_dataset
from adamcb.lab.tasks.models import build_model

BATCH_SIZE, LR = 64, 1e-3
EPOCHS, SEEDS = 4, 2  # of `shared_sample`
QUANTILES = {"prob_min": 0.0, "prob_q10": 0.1, "prob_q50": 0.5, "prob_q90": 0.9, "prob_q99": 0.99, "prob_max": 1.0}
READINGS = ("second_moment", "effective_sample_size", "coverage", "largest_weight")

Parts = Callable[[nn.Module, int, torch.Generator], dict[str, Any]]
METHODS: dict[str, Parts] = {
    "adam": lambda model, n, generator: {
        "selection": UniformSelection(n, BATCH_SIZE, generator=generator),
        "optimizer": torch.optim.Adam(model.parameters(), LR),
    },
    "adambs": lambda model, n, generator: {
        "selection": ReplacementBandit(n, BATCH_SIZE, generator=generator),
        "optimizer": AdamX(model.parameters(), LR),
    },
    "adamcb-paper": lambda model, n, generator: {
        "selection": CombinatorialBandit(n, BATCH_SIZE, feedback="proof", gate=None, generator=generator),
        "optimizer": AdamX(model.parameters(), LR),
    },
    "adamcb": lambda model, n, generator: {
        "selection": CombinatorialBandit(n, BATCH_SIZE, gate=None, generator=generator),
        "optimizer": AdamX(model.parameters(), LR, bias_correction=True),
    },
}


@dataclass
class Run:
    """What one method wrote with one seed."""

    results: list[dict[str, Any]] = field(default_factory=list)
    selection: list[dict[str, Any]] = field(default_factory=list)


@functools.cache
def shared_sample() -> Path:
    """Return a folder that is trained once for all tests, which must not change it."""
    place = Path(tempfile.mkdtemp(prefix="adamcb-report-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is only held up by more
    try:
        return write_sample(place / "results", epochs=EPOCHS, seeds=SEEDS, model_name="logistic")
    finally:
        torch.set_num_threads(threads)


def write_sample(folder: Path, *, epochs: int, seeds: int, model_name: str = "mlp") -> Path:
    """Train every method with every seed and write the result folder, all but the table and the figures."""
    data = load_dataset("digits")
    (folder / "chosen").mkdir(parents=True)
    runs = [_train(folder, data, model_name, method, seed, epochs) for method in METHODS for seed in range(seeds)]
    _write_csv(folder / "results.csv", [row for run in runs for row in run.results])
    _write_csv(folder / "selection.csv", [row for run in runs for row in run.selection])
    config = {
        "dataset": "digits",
        "model": model_name,
        "methods": list(METHODS),
        "seeds": list(range(seeds)),
        "epochs": epochs,
        "batch_size": BATCH_SIZE,
        "lr": LR,
        "schedule": "constant",
        "exploration": 0.4,
        "fraction": 1.0,
        "device": "cpu",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "notes": [],
        "class_names": list(data.class_names),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _train(folder: Path, data: ImageData, model_name: str, method: str, seed: int, epochs: int) -> Run:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model(model_name, image_shape=data.image_shape, num_classes=data.num_classes)
    size = len(data.train)
    parts = METHODS[method](model, size, torch.Generator().manual_seed(seed))
    trainer = AdamCB(model, data.train, BATCH_SIZE, scores="exact", **parts)
    run, counts, seconds = Run(), np.zeros(size, dtype=np.int64), 0.0
    for epoch, step in _epochs(trainer, epochs):
        if epoch:
            seconds += _train_epoch(trainer, model, counts)
        names = {"method": method, "seed": seed, "epoch": epoch, "step": step}
        run.results.append({**names, "seconds": seconds, **_evaluate(model, data)})
        if epoch:
            run.selection.append({**names, **_readings(trainer, size)})
    _save_chosen(folder / "chosen" / f"{method}-seed{seed}.npz", model, data, counts)
    return run


def _epochs(trainer: AdamCB, epochs: int) -> Iterator[tuple[int, int]]:
    return ((epoch, epoch * len(trainer)) for epoch in range(epochs + 1))


def _train_epoch(trainer: AdamCB, model: nn.Module, counts: np.ndarray) -> float:
    start = time.perf_counter()
    for batch in trainer:
        images, labels = batch
        trainer.step(functional.cross_entropy(model(images), labels, reduction="none"))
        np.add.at(counts, batch.draw.indices, 1)
    return time.perf_counter() - start


def _losses(model: nn.Module, split: TensorDataset) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = split.tensors
    with torch.no_grad():
        logits = model(images)
    return functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(1)


def _evaluate(model: nn.Module, data: ImageData) -> dict[str, float]:
    scores = {}
    for name, split in (("train", data.train), ("test", data.test)):
        losses, predictions = _losses(model, split)
        scores[f"{name}_loss"] = losses.mean().item()
        scores[f"{name}_accuracy"] = (predictions == split.tensors[1]).double().mean().item()
    return scores


def _readings(trainer: AdamCB, size: int) -> dict[str, Any]:
    meter = trainer.meter.as_dict()
    relative = trainer.selection.inclusion_probs() * size / BATCH_SIZE
    probs = {name: float(np.quantile(relative, share)) for name, share in QUANTILES.items()}
    readings = {name: "" if np.isnan(meter[name]) else meter[name] for name in READINGS}
    return {**readings, **probs}


def _save_chosen(path: Path, model: nn.Module, data: ImageData, counts: np.ndarray) -> None:
    index = np.argsort(-counts, kind="stable")[:48]
    images, labels = (tensor[torch.from_numpy(index)] for tensor in data.train.tensors)
    losses, predictions = _losses(model, TensorDataset(images, labels))
    np.savez(
        path,
        index=index,
        count=counts[index],
        label=labels.numpy(),
        prediction=predictions.numpy(),
        loss=losses.numpy(),
        image=data.to_pixels(images).numpy()[..., 0],
    )


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    write_sample(Path(sys.argv[1]), epochs=int(sys.argv[2]), seeds=int(sys.argv[3]))
