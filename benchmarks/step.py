"""Time of a whole step on chosen batches against a plain Adam loop, and against the method by the textbook. One thread.

A step is all of it: choosing the batch, fetching it, forward, backward, norms, optimizer, learning. The plain loop has
a reshuffling `DataLoader` over the same tensors in memory, and `torch.optim.Adam`. The textbook computes and sorts all
n probabilities, rounds them by DepRound in O(n), and goes backward once for every sample.

"Equal norms" is a loss whose gradients all have the same norm at the last layer, −logit of the label: choosing cannot
help there, and the loader measures one batch in 16 only.

They take turns of several steps, so that whatever else the machine does hits all of them; medians are compared.

    ADAMCB_DATA=... python -m benchmarks.step [--seconds 20] [--model mlp] [--batch-size 128]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, UniformSelection, depround, paper
from adamcb.lab.tasks import models
from adamcb.lab.tasks.datasets import ImageData, load_dataset
from adamcb.training import PHASES, Meter
from benchmarks.timing import duration, interleaved, markdown

TEXTBOOK = "the textbook"
STEPS = 16  # a turn: twice AdamX's cycle of eight, so that all turns cost alike


def equal_norms(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a loss per sample whose gradient at the last layer has norm 1."""
    return -logits.gather(1, labels[:, None]).squeeze(1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def plain(
    data: ImageData, model: torch.nn.Module, batch_size: int, loss: Callable = cross_entropy, **options
) -> Callable[[], None]:
    """Return a turn of the loop that everybody writes."""
    loader = DataLoader(data.train, batch_size=batch_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def turn() -> None:
        for x, y in itertools.islice(batches, STEPS):
            optimizer.zero_grad()
            loss(model(x), y).mean().backward()
            optimizer.step()

    return turn


def ours(trainer: AdamCB) -> Callable[[], None]:
    """Return a turn of AdamCB."""
    batches = itertools.chain.from_iterable(itertools.repeat(trainer))

    def turn() -> None:
        for x, y in itertools.islice(batches, STEPS):
            trainer.step(cross_entropy(trainer.model(x), y))

    return turn


def own_loop(
    data: ImageData, model: torch.nn.Module, batch_size: int, loss: Callable = cross_entropy, **options
) -> Callable[[], None]:
    """Return a turn of the loop that everybody writes, with two lines changed."""
    loader = AdaptiveLoader(model, data.train, batch_size, **options)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def turn() -> None:
        for x, y in itertools.islice(batches, STEPS):
            optimizer.zero_grad()
            loader.weigh(loss(model(x), y)).backward()
            optimizer.step()

    return turn


def textbook(data: ImageData, model: torch.nn.Module, batch_size: int, exploration: float = 0.4) -> Callable[[], None]:
    """Return one step of Algorithm 1 as it is written: K backward passes, O(n) selection."""
    x, y = data.train.tensors
    n, generator = len(x), torch.Generator().manual_seed(0)
    weights, largest = np.ones(n), 0.0
    optimizer = paper.adamx(model.parameters())
    parameters = list(model.parameters())

    def step() -> None:
        nonlocal largest
        probs = capped(weights, batch_size, exploration)
        chosen = depround(probs, generator=generator)
        total, norms = [torch.zeros_like(parameter) for parameter in parameters], []
        for i in chosen:
            gradients = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), parameters)
            norms.append(float(torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))))
            for summed, gradient in zip(total, gradients, strict=True):
                summed.add_(gradient, alpha=1.0 / (n * float(probs[i])))
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        optimizer.step()
        largest, floor = max(largest, *norms), batch_size * exploration / n
        loss = 1.0 - (floor * np.array(norms) / (largest * probs[chosen])) ** 2
        weights[chosen] *= np.where(probs[chosen] < 1.0, np.exp(-floor * loss / probs[chosen]), 1.0)

    return step


def capped(weights: np.ndarray, batch_size: int, exploration: float) -> np.ndarray:
    """Return the inclusion probabilities by Algorithm 2, sorting all weights."""
    n = len(weights)
    share = (1.0 / batch_size - exploration / n) / (1.0 - exploration)
    descending = np.sort(weights)[::-1]
    rest, count = descending.sum(), 0
    while descending[count] >= share * rest / (1.0 - count * share):
        rest, count = rest - descending[count], count + 1
    threshold = np.inf if count == 0 else descending[count - 1]
    mass = np.where(weights >= threshold, share * rest / (1.0 - count * share), weights)
    return np.minimum(batch_size * ((1.0 - exploration) * mass / mass.sum() + exploration / n), 1.0)


def readings(data: ImageData, batch_size: int) -> Callable[[], None]:
    """Return what the meter does in a turn, by itself."""
    selection = CombinatorialBandit(len(data.train), batch_size, generator=torch.Generator().manual_seed(0))
    meter, draws = Meter(len(data.train), batch_size), [selection.draw() for _ in range(STEPS)]
    scores = np.random.default_rng(0).random(batch_size)

    def turn() -> None:
        for draw in draws:
            meter.note_draw(draw)
            meter.note_scores(draw, scores)

    return turn


def new_model(data: ImageData, name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return getattr(models, name)(data.image_shape, data.num_classes)


def contestants(data: ImageData, name: str, batch_size: int) -> tuple[dict[str, Callable[[], None]], dict[str, AdamCB]]:
    """Return a turn of each, and the trainers behind those that are ours."""

    def trainer(**options) -> AdamCB:
        return AdamCB(new_model(data, name), data.train, batch_size, **options)

    def uniform() -> UniformSelection:
        return UniformSelection(len(data.train), batch_size)

    trainers = {
        'AdamCB, scores="exact"': trainer(scores="exact"),
        'AdamCB, scores="last-layer"': trainer(scores="last-layer"),
        "AdamCB, uniform selection": trainer(selection=uniform()),
    }
    turns = {
        "Adam, DataLoader": plain(data, new_model(data, name), batch_size),
        "Adam(fused=True), DataLoader": plain(data, new_model(data, name), batch_size, fused=True),
        "Adam(fused=True), AdaptiveLoader": own_loop(data, new_model(data, name), batch_size),
        "equal norms: Adam(fused=True), DataLoader": plain(
            data, new_model(data, name), batch_size, equal_norms, fused=True
        ),
        "equal norms: Adam(fused=True), AdaptiveLoader": own_loop(data, new_model(data, name), batch_size, equal_norms),
        **{title: ours(own) for title, own in trainers.items()},
        "of it, the meter's readings": readings(data, batch_size),
    }
    return turns, trainers


def rows(data: ImageData, name: str, batch_size: int, seconds: float, *, with_textbook: bool) -> Iterator[list[str]]:
    """Measure on one model and yield the rows of its table."""
    turns, trainers = contestants(data, name, batch_size)
    for turn in turns.values():
        for _ in range(5):  # compilers and caches; with equal norms, until measuring rests
            turn()
    if with_textbook:
        turns[TEXTBOOK] = textbook(data, new_model(data, name), batch_size)
    measured = interleaved(turns, seconds=seconds)
    medians = {title: value / (1 if title == TEXTBOOK else STEPS) for title, value in measured.items()}
    base = medians["Adam, DataLoader"]
    for title, median in medians.items():
        cells = shares(turns[title], trainers[title].meter) if title in trainers else ["–"] * len(PHASES)
        yield [
            name,
            title,
            duration(median),
            f"{median / base:.4f}" if median < 0.1 * base else f"{median / base:.2f}",
            *cells,
        ]


def shares(turn: Callable[[], None], meter: Meter) -> list[str]:
    """Return where the time of a trainer goes, without the turns of others in between."""
    turn()
    before = dict(meter.seconds)
    for _ in range(20):
        turn()
    spent = {phase: meter.seconds[phase] - before[phase] for phase in PHASES}
    return [f"{100 * spent[phase] / sum(spent.values()):.1f} %" for phase in PHASES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each contestant (default: 20)")
    parser.add_argument("--model", choices=("mlp", "cnn"), action="append", help="only these (default: both)")
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("mnist")
    print(f"MNIST, n = {len(data.train)}, batches of {arguments.batch_size}, torch {torch.__version__}, 1 thread\n")
    header = ["model", "step", "median", "÷ Adam", *(phase for phase in PHASES)]
    table = []
    for name in arguments.model or ("mlp", "cnn"):
        table += rows(data, name, arguments.batch_size, arguments.seconds, with_textbook=name == "mlp")
    print(markdown(header, table))


if __name__ == "__main__":
    main()
