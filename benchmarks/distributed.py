"""What several processes cost: chosen steps against plain ones under DDP and fully_shard, one thread each.

Real processes, gloo on this machine. Steps of the MNIST CNN take turns with steps of a plain loop of the same model
(uniform batches, mean loss, nothing measured). The ratio of the processor's time is what other work on the machine does
not change; by the clock, a gather on a busy machine is a wait for the scheduler.

Draw, gather and update are also timed by themselves, as a step does them but without a model in between, for datasets
of several sizes that take turns. "of a step" is against the plain step in as many processes. Bytes are what a rank
gives to the gather, and what it then sends if the gather is a ring: W − 1 parts. "bytes a sample" is the memory that a
rank holds for the selection in its second epoch, with the meter's flag.

    ADAMCB_DATA=... python -m benchmarks.distributed [--processes 1 2 4] [--samples 1e5 1e6 1e7] [--kind combinatorial]

The queue has weights that differ; CombinatorialBandit draws every batch by weight (gate=None), as it does once its gate
is open. "sharded" are the strata that a rank holds of the largest size, as `sharded=True` makes them.

Selections of all sizes are in memory together, in every process. 10⁹ samples are `CombinatorialBandit`'s, 11.4 GB a
process: --processes 1 --samples 1e9 --kind combinatorial --steps 0
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from adamcb import AdaptiveLoader
from adamcb.data import part_of
from adamcb.lab.tasks import models
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.selection import Selection, Strata, Stratum, stratum_size
from adamcb.training import Ranks, gather_scores
from benchmarks.large import KINDS, end_epoch, memory, with_weights
from benchmarks.timing import duration, markdown

TURN = 20  # steps of a turn without a model
STEPS_A_TURN = 2  # of a turn with one


def feedback_step(bandit: Selection, ranks: Ranks) -> Callable[[], tuple[float, ...]]:
    """Return a step without a model: the seconds of draw, gather and update."""
    k = bandit.batch_size // ranks.size
    scores, losses = torch.rand(k), torch.rand(k)

    def step() -> tuple[float, ...]:
        start = time.perf_counter()
        whole = bandit.draw()
        part = part_of(whole, ranks.rank, ranks.size)
        drawn = time.perf_counter()
        heard: Any = scores
        if ranks.size > 1:
            _, (heard, *_) = gather_scores(ranks, part, scores, losses, losses, losses.sum()).columns()
        gathered = time.perf_counter()
        bandit.update(whole, heard.double().numpy())
        return drawn - start, gathered - drawn, time.perf_counter() - gathered

    return step


def new_bandit(kind: str, num_samples: int, batch_size: int) -> Selection:
    return KINDS[kind](num_samples, batch_size, generator=torch.Generator().manual_seed(0))


def new_strata(kind: str, num_samples: int, batch_size: int, ranks: Ranks) -> Strata:
    """Return the strata of this rank: 8 for all, as `sharded=True` makes them for batches of 128."""
    count = math.lcm(ranks.size, math.gcd(batch_size, 8))
    held = []
    for stratum in range(ranks.rank, count, ranks.size):
        inner = new_bandit(kind, stratum_size(num_samples, stratum, count), batch_size // count)
        held.append(Stratum(inner, num_samples, number=stratum, num_strata=count))
    return Strata(held)


def measured(make: Callable[[], Selection], num_samples: int) -> tuple[Selection, float]:
    """Return a new selection in its second epoch, and the bytes that a sample takes, the meter's flag among them."""
    before = memory("VmRSS")
    bandit = make()
    parts = [stratum.selection for stratum in bandit.strata] if isinstance(bandit, Strata) else [bandit]
    for part in parts:
        end_epoch(with_weights(part))
    bandit.draw()
    return bandit, (memory("VmRSS") - before + sum(part.num_samples for part in parts)) / num_samples


def time_feedback(
    kind: str, sizes: list[int], batch_size: int, turns: int, ranks: Ranks
) -> dict[str, dict[str, float]]:
    """Return the medians for each n; the last row is of sharded weights."""
    new_bandit(kind, 1000, 10).draw()  # compiles
    steps, held = {}, {}
    for n in sizes:
        bandit, held[f"{n:,}"] = measured(partial(new_bandit, kind, n, batch_size), n)
        steps[f"{n:,}"] = feedback_step(bandit, ranks)
    if ranks.size > 1:
        name = f"{sizes[-1]:,}, sharded"
        bandit, held[name] = measured(partial(new_strata, kind, sizes[-1], batch_size, ranks), sizes[-1])
        steps[name] = feedback_step(bandit, Ranks())
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            start = time.process_time()
            taken = [step() for _ in range(TURN)]
            if turn:  # the first touches memory
                processor[name].append((time.process_time() - start) / TURN)
                times[name] += taken
    return {
        name: {
            **dict(zip(("draw", "gather", "update"), map(statistics.median, zip(*taken, strict=True)), strict=True)),
            "all": statistics.median(map(sum, taken)),
            "processor": statistics.median(processor[name]),
            "bytes": held[name],
        }
        for name, taken in times.items()
    }


def step_of(form: str, chosen: bool, batch_size: int, ranks: Ranks) -> Callable[[], None]:
    """Return one step of the CNN on its part of the next batch: chosen, or the next of a shuffled epoch.

    The plain loop takes its samples from memory in one gather, as the loader does; it has nothing else to do.
    """
    data = load_dataset("mnist")
    images, labels = data.train.tensors
    torch.manual_seed(0)
    model: torch.nn.Module = models.cnn(data.image_shape, data.num_classes)
    if form == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    elif ranks.size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())

    def chosen_batches() -> Iterator[Tensor]:
        loader = AdaptiveLoader(model, data.train, batch_size)
        while True:
            for x, y in loader:
                yield loader.weigh(F.cross_entropy(model(x), y, reduction="none"))

    def plain_batches() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            for rows in torch.randperm(len(labels), generator=generator).split(batch_size)[:-1]:
                own = rows[ranks.rank :: ranks.size]
                yield F.cross_entropy(model(images[own]), labels[own])

    losses = chosen_batches() if chosen else plain_batches()

    def step() -> None:
        optimizer.zero_grad()
        next(losses).backward()
        optimizer.step()

    return step


def time_steps(forms: list[str], batch_size: int, turns: int, ranks: Ranks) -> dict[str, dict[str, float]]:
    """Return for each form the seconds of a plain step, and how many times those a chosen one takes.

    A ratio is that of two turns that follow each other, whichever came first. The median of all of them counts, with
    its interval of 95 %.
    """
    results = {}
    for form in forms:
        steps = [step_of(form, chosen, batch_size, ranks) for chosen in (False, True)]
        taken: list[list[tuple[float, float]]] = [[], []]
        for turn in range(turns + 1):
            for chosen in (0, 1) if turn % 2 else (1, 0):
                clock, processor = time.perf_counter(), time.process_time()
                for _ in range(STEPS_A_TURN):
                    steps[chosen]()
                if turn:  # the first compiles
                    taken[chosen].append((time.perf_counter() - clock, time.process_time() - processor))
        plain, chosen = (np.array(times) / STEPS_A_TURN for times in taken)
        low, middle, high = np.quantile(chosen / plain, (0.25, 0.5, 0.75), axis=0)
        error = 1.57 * (high - low) / np.sqrt(turns)  # the notch of a box plot
        names = ("step", "processor", "ratio", "processor ratio", "error", "processor error")
        results[form] = dict(zip(names, (*np.median(plain, axis=0), *middle, *error), strict=True))
    return results


def be_rank(rank: int, world_size: int, store: str, arguments: argparse.Namespace, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    ranks = Ranks.current()
    feedback = time_feedback(arguments.kind, arguments.samples, arguments.batch_size, arguments.turns, ranks)
    forms = ["alone"] if world_size == 1 else ["DDP", "fully_shard"]
    step = time_steps(forms, arguments.batch_size, arguments.steps, ranks) if arguments.steps else {}
    if rank == 0:
        results.put((feedback, step))
    dist.barrier()
    dist.destroy_process_group()


def in_processes(world_size: int, arguments: argparse.Namespace) -> tuple[dict, dict]:
    """Measure in this many processes, and return what rank 0 saw."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        multiprocessing.start_processes(  # pyright: ignore[reportPrivateImportUsage]
            be_rank, (world_size, store, arguments, results), nprocs=world_size, start_method="spawn"
        )
    return results.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--samples", type=lambda n: int(float(n)), nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--kind", choices=KINDS, default="queue")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--turns", type=int, default=20, help=f"of {TURN} steps, for each n (default: 20)")
    parser.add_argument("--steps", type=int, default=40, help="turns of steps of the CNN; 0: none (default: 40)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    k = arguments.batch_size
    rows, whole_steps = [], []
    for world_size in arguments.processes:
        feedback, step = in_processes(world_size, arguments)
        given = 20 * k // world_size + 4 if world_size > 1 else 0
        for name, taken in feedback.items():
            own = 0 if "sharded" in name else given
            plain = next(iter(step.values()), None)
            shares = ["–", "–"]
            if plain:
                shares = [f"{taken[a] / plain[b]:.2%}" for a, b in (("all", "step"), ("processor", "processor"))]
            parts = [duration(taken[part]) for part in ("draw", "gather", "update", "all", "processor")]
            sent = [str(own), f"{own * (world_size - 1) / k:.1f}·K", f"{taken['bytes']:.1f}"]
            rows.append([str(world_size), name, *parts, *shares, *sent])
        for form, row in step.items():
            pairs = (("processor ratio", "processor error"), ("ratio", "error"))
            ratios = [f"{row[ratio]:.3f} ± {row[error]:.3f}" for ratio, error in pairs]
            times = [duration(row[name]) for name in ("processor", "step")]
            whole_steps.append([str(world_size), form, *times, *ratios])
    header = ["processes", "samples", "draw", "gather", "update", "together", "processor"]
    header += ["of a step", "of its processor time", "bytes given", "sent, ring", "bytes a sample"]
    print(
        f"\n{arguments.kind}, batches of {k} for all ranks, MNIST CNN, float32, "
        f"torch {torch.__version__}\n\n{markdown(header, rows)}\n"
    )
    step_header = ["processes", "model", "plain step, processor", "clock", "chosen ÷ plain, processor", "clock"]
    if whole_steps:
        print(markdown(step_header, whole_steps))


if __name__ == "__main__":
    main()
