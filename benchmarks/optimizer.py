"""Time of an AdamX step against `torch.optim.Adam(amsgrad=True)`, of the same implementation, on one thread.

They take turns of eight steps, on parameters and gradients of their own, so that whatever else the machine does hits
all of them; the medians are compared. Prints a Markdown table.

    python -m benchmarks.optimizer [--rounds 9] [--threads 1] [--model "10 M"]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from adamcb.optim import AdamX

# Shapes as they occur: a multilayer perceptron for MNIST, a small and a large transformer.
MLP = [(512, 784), (512,), (256, 512), (256,), (10, 256), (10,)]
BLOCK = [(1536, 512), (1536,), (512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,), (512,), (512,)]
WIDE = [(4608, 1536), (4608,), (1536, 1536), (1536,), (6144, 1536), (6144,), (1536, 6144), (1536,), (1536,), (1536,)]
MODELS = {
    "0.5 M": MLP,
    "10 M": [(500, 512), *BLOCK * 3, (10, 512), (10,)],
    "100 M": [(10_000, 1536), *WIDE * 3, (10, 1536), (10,)],
}
IMPLEMENTATIONS = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
STEPS = 8  # in float32 AdamX has one step in eight that makes v̂ grow: a turn has exactly one of these
CONTENDERS = {
    "Adam": lambda params, **options: torch.optim.Adam(params, amsgrad=True, **options),
    "AdamX": AdamX,
    "AdamX, bias correction": lambda params, **options: AdamX(params, bias_correction=True, **options),
}


def optimizer_of(make, shapes, options) -> torch.optim.Optimizer:
    params = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    for param in params:
        param.grad = torch.randn(param.shape)
    return make(params, **options)


def medians(optimizers: list[torch.optim.Optimizer], rounds: int) -> list[float]:
    """Return the median seconds of a step of each, over `rounds` rounds in which each takes `STEPS` steps."""
    seconds = [[] for _ in optimizers]
    for turn in range(rounds + 1):
        for optimizer, times in zip(optimizers, seconds, strict=True):
            start = time.perf_counter()
            for _ in range(STEPS):
                optimizer.step()
            if turn > 0:
                times.append((time.perf_counter() - start) / STEPS)
    return [statistics.median(times) for times in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds at 10 M parameters and above (default: 9)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", choices=MODELS, action="append", help="only these (default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    columns = [f"{name} (ms)" for name in CONTENDERS]
    print(f"| parameters | implementation | {' | '.join(columns)} | AdamX ÷ Adam | with bias correction ÷ Adam |")
    print("|---|---|---|---|---|---|---|")
    for model in arguments.model or MODELS:
        count = sum(torch.Size(shape).numel() for shape in MODELS[model])
        for name, options in IMPLEMENTATIONS.items():
            optimizers = [optimizer_of(make, MODELS[model], options) for make in CONTENDERS.values()]
            rounds = arguments.rounds * (5 if model == "0.5 M" else 1)
            adam, adamx, corrected = times = medians(optimizers, rounds)
            cells = " | ".join(f"{1e3 * seconds:.2f}" for seconds in times)
            print(f"| {count:,} | {name} | {cells} | {adamx / adam:.2f} | {corrected / adam:.2f} |", flush=True)


if __name__ == "__main__":
    main()
