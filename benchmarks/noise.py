"""Whether batches are as noisy as promised: their distance from the mean gradient, over whole trainings.

    ADAMCB_DATA=... python -m benchmarks.noise [--task mnist-mlp] [--scores last-layer] [--samples 6000] [--seed 0]

A model of the lab trains on the first samples of a task with K = 64, `min_batch_size=8`, Adam and a cosine schedule.
Before every step a twin of it computes the gradients of all samples. The squared distance of the batch gradient from
their mean is divided by the variance of K uniform samples, Σ over an epoch by Σ over an epoch, so that no single step
decides. `reshuffled` takes shuffled batches of K instead. Prints Markdown.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from adamcb import AdaptiveLoader, PerSampleNorms, QueueBandit
from adamcb.lab.commands.budget import TASKS, load
from adamcb.lab.runs.building import initial_model
from adamcb.lab.tasks.task import Task, fetch
from benchmarks.timing import markdown

BATCH_SIZE, SMALLEST = 64, 8
EVERYTHING = ("mnist-mlp", "mnist-logistic", "protein", "kddcup99")


class Noise(NamedTuple):
    """What a training gave: how many samples, and by epoch the variance and the bias beside uniform samples."""

    samples: float
    variance: list[float]
    along: list[float]


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).double()


def all_gradients(task: Task, model: nn.Module, everything: Any) -> tuple[Tensor, float]:
    """Return the mean gradient, and the mean squared norm of all gradients."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    with PerSampleNorms(twin) as norms:
        task.losses(twin, everything).mean().backward()
        squares = norms.take().double().square()
    return flat(parameter.grad for parameter in twin.parameters()), float(squares.mean()) * len(squares) ** 2


def train(task: Task, *, scores: str, epochs: int, seed: int) -> Noise:
    model = initial_model(task, seed, "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr)
    n, everything = len(task.train), fetch(task.train, range(len(task.train)))
    generator = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {"min_batch_size": SMALLEST, "scores": scores}
    if scores == "reshuffled":
        settings = {"selection": QueueBandit(n, BATCH_SIZE, exploration=1.0, generator=generator)}
    loader = AdaptiveLoader(model, task.train, BATCH_SIZE, seed=seed, **settings)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    used, variance, along = 0, [], []
    for _ in range(epochs):
        distance = uniform = product = square = 0.0
        for batch in loader:
            mean, squares = all_gradients(task, model, everything)
            optimizer.zero_grad()
            losses = task.losses(model, batch)
            loader.weigh(losses).backward()
            gradient = flat(parameter.grad for parameter in model.parameters())
            distance += float((gradient - mean).square().sum())
            uniform += (squares - float(mean @ mean)) / BATCH_SIZE * (n - BATCH_SIZE) / (n - 1)
            product, square = product + float(gradient @ mean), square + float(mean @ mean)
            used += len(losses)
            optimizer.step()
            schedule.step()
        variance.append(distance / uniform)
        along.append(product / square)
    return Noise(used / (epochs * len(loader) * BATCH_SIZE), variance, along)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how noisy batches are beside K uniform samples.")
    parser.add_argument("--task", action="append", choices=TASKS, help=f"default: {', '.join(EVERYTHING)}")
    parser.add_argument("--scores", action="append", choices=("last-layer", "exact", "reshuffled"))
    parser.add_argument("--samples", type=int, default=6000, metavar="N")
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.task or EVERYTHING:
        task = load(name, None)[0].prepared(options.seed)
        task = replace(task, train=Subset(task.train, range(min(options.samples, len(task.train)))))
        for scores in options.scores or ("last-layer", "exact", "reshuffled"):
            noise = train(task, scores=scores, epochs=options.epochs, seed=options.seed)
            mean, along = (sum(values) / options.epochs for values in (noise.variance, noise.along))
            spread = f"{min(noise.variance):.2f} to {max(noise.variance):.2f}"
            rows.append([name, scores, f"{100 * noise.samples:.0f} %", f"{mean:.2f}", spread, f"{along:.2f}"])
            print(rows[-1], flush=True)
    print(markdown(["task", "scores", "samples", "variance", "by epoch", "along the mean"], rows))


if __name__ == "__main__":
    main()
