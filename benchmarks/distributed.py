"""What several processes cost: draw and feedback of a step against a DDP step of the MNIST CNN, one thread each.

Real processes, gloo on this machine. Draw, gather and update are timed together, as a step does them but without a
model in between, for datasets of several sizes that take turns; so no waiting for a slower rank is counted that the
averaging of gradients has done already. "of a step" is against the median AdamCB step of the CNN under
DistributedDataParallel in as many processes: of the clock, and of the processor, which other work on the machine does
not change (a gather on a busy machine is a wait for the scheduler). Bytes are what a rank gives to the gather, and what
it then sends if the gather is a ring: W − 1 parts.

    ADAMCB_DATA=... python -m benchmarks.distributed [--processes 1 2 4] [--samples 100000 1000000 10000000]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from adamcb import AdamCB, CombinatorialBandit
from adamcb.data import part_of
from adamcb.lab.tasks import models
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.training import Ranks, gather_scores
from benchmarks.timing import duration, markdown

TURN = 20  # steps of a turn


def feedback_step(bandit: CombinatorialBandit, ranks: Ranks) -> Callable[[], tuple[float, ...]]:
    """Return a step without a model: the seconds of draw, gather and update."""
    k = bandit.batch_size // ranks.size
    scores, losses = torch.rand(k), torch.rand(k)

    def step() -> tuple[float, ...]:
        start = time.perf_counter()
        whole = bandit.draw()
        part = part_of(whole, ranks.rank, ranks.size)
        drawn = time.perf_counter()
        heard = scores
        if ranks.size > 1:
            heard = gather_scores(ranks, part, scores, losses, losses, losses.sum()).measured
        gathered = time.perf_counter()
        bandit.update(whole, heard.double().numpy())
        return drawn - start, gathered - drawn, time.perf_counter() - gathered

    return step


def new_bandit(num_samples: int, batch_size: int) -> CombinatorialBandit:
    generator = torch.Generator().manual_seed(0)
    return CombinatorialBandit(num_samples, batch_size, generator=generator)


def time_feedback(sizes: list[int], batch_size: int, turns: int, ranks: Ranks) -> dict[str, dict[str, float]]:
    """Return the medians for each n; the last row is of sharded weights: n/W samples, K/W of them a draw."""
    steps = {f"{n:,}": feedback_step(new_bandit(n, batch_size), ranks) for n in sizes}
    shard = new_bandit(sizes[-1] // ranks.size, batch_size // ranks.size)
    steps[f"{sizes[-1]:,}, sharded"] = feedback_step(shard, Ranks())
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
        }
        for name, taken in times.items()
    }


def time_step(batch_size: int, steps: int, ranks: Ranks) -> dict[str, float]:
    """Return the median seconds of a step of the CNN, and the meter's share for choosing, waiting included."""
    data = load_dataset("mnist")
    torch.manual_seed(0)
    model: torch.nn.Module = models.cnn(data.image_shape, data.num_classes)
    model = DistributedDataParallel(model) if ranks.size > 1 else model
    trainer = AdamCB(model, data.train, batch_size)
    taken, last, busy = [], time.perf_counter(), 0.0
    for x, y in trainer:
        trainer.step(F.cross_entropy(model(x), y, reduction="none"))
        taken.append(time.perf_counter() - last)
        last = time.perf_counter()
        if len(taken) == 4:
            trainer.meter.seconds.update(dict.fromkeys(trainer.meter.seconds, 0.0))
            busy = time.process_time()
        if len(taken) == steps + 4:
            break
    seconds, busy = trainer.meter.seconds, (time.process_time() - busy) / steps
    return {
        "processor": busy,
        "step": statistics.median(taken[4:]),
        "share": seconds["selection"] / sum(seconds.values()),
    }


def epoch_and_memory(num_samples: int, batch_size: int) -> dict[str, float]:
    """Return the seconds of a new epoch's order, and the bytes that a sample takes, the meter's flag among them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    bandit = new_bandit(num_samples, batch_size)  # as a new epoch: an order, its inverse, and a tree
    seconds = time.perf_counter() - start
    bandit.draw()
    held = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return {"epoch": seconds, "bytes": held / num_samples + 1}


def be_rank(rank: int, world_size: int, store: str, arguments: argparse.Namespace, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    ranks = Ranks.current()
    feedback = time_feedback(arguments.samples, arguments.batch_size, arguments.turns, ranks)
    step = time_step(arguments.batch_size, arguments.steps, ranks) if arguments.steps else {}
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
    parser.add_argument("--samples", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--turns", type=int, default=20, help=f"of {TURN} steps, for each n (default: 20)")
    parser.add_argument("--steps", type=int, default=60, help="of the CNN; 0: none (default: 60)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    k = arguments.batch_size
    rows = []
    for world_size in arguments.processes:
        feedback, step = in_processes(world_size, arguments)
        given = 12 * k // world_size + 4 if world_size > 1 else 0
        for name, taken in feedback.items():
            own = 0 if "sharded" in name else given
            shares = ["–", "–"]
            if step:
                shares = [f"{taken[a] / step[b]:.2%}" for a, b in (("all", "step"), ("processor", "processor"))]
            parts = [duration(taken[part]) for part in ("draw", "gather", "update", "all", "processor")]
            rows.append([str(world_size), name, *parts, *shares, str(own), f"{own * (world_size - 1) / k:.1f}·K"])
        if step:
            print(
                f"{world_size} processes: a step {duration(step['step'])}, of the processor "
                f"{duration(step['processor'])}; selection with all waiting {step['share']:.2%}"
            )
    header = ["processes", "samples", "draw", "gather", "update", "together", "processor"]
    header += ["of a step", "of its processor time", "bytes given", "sent, ring"]
    print(
        f"\nMNIST CNN, batches of {k} for all ranks, float32, torch {torch.__version__}\n\n{markdown(header, rows)}\n"
    )
    epochs = {n: epoch_and_memory(n, k) for n in arguments.samples}
    print(
        markdown(
            ["samples", "new order, once an epoch", "spread over its steps", "bytes a sample"],
            [
                [f"{n:,}", duration(row["epoch"]), duration(row["epoch"] / (n // k)), f"{row['bytes']:.1f}"]
                for n, row in epochs.items()
            ],
        )
    )


if __name__ == "__main__":
    main()
