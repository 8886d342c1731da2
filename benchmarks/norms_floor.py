"""What exact norms of a dense layer cost at the least: its products alone, without the engine.

    python -m benchmarks.norms_floor [--clock cpu]

One thread, 16 samples of 64 tokens, medians of turns. "product" is the weight's gradient as a plain step takes it, one
matrix product over all tokens. The other columns are multiples of it. "formed": the same multiplications as 16
products of 64 tokens each. "summed": also the sum of the 16 and their norms. "Gram": the norms alone, beside the plain
product. A plain step does three products of this size, so a column at 1.6 adds 0.2 to a step of dense layers alone.
"""

from __future__ import annotations

import argparse
import time

import torch

from adamcb.gradnorm import Outer
from benchmarks.timing import duration, interleaved, markdown

SAMPLES, TOKENS = 16, 64
SHAPES = [(128, 128), (512, 128), (128, 512)]  # those of the layers of BERT in `norms_transformers`


def measure(rows: int, columns: int, clock: str) -> list[str]:
    """Return the line of one layer."""
    left, right = torch.randn(SAMPLES, TOKENS, rows), torch.randn(SAMPLES, TOKENS, columns)
    first, second = left.flatten(0, 1).t(), right.flatten(0, 1)
    formed = torch.empty(SAMPLES, rows, columns)
    part = Outer(left.unsqueeze(1), right.unsqueeze(1), (rows, columns))
    gram = torch.empty(2, SAMPLES, TOKENS, TOKENS)

    def gram_norms() -> torch.Tensor:
        for side, out in zip((left, right), gram, strict=True):
            torch.bmm(side, side.transpose(1, 2), out=out)
        return (gram[0] * gram[1]).flatten(1).sum(1)

    seconds = interleaved(
        {
            "product": lambda: first @ second,
            "formed": lambda: torch.bmm(left.transpose(1, 2), right, out=formed),
            "summed": part.formed,
            "Gram": lambda: (first @ second, gram_norms()),
        },
        seconds=0.2,
        clock={"wall": time.perf_counter, "cpu": time.process_time}[clock],
    )
    product = seconds.pop("product")
    return [f"{rows} × {columns}", duration(product), *(f"{value / product:.2f}" for value in seconds.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for machines with other work")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(markdown(["weight", "product", "formed", "summed", "Gram"], []))
    for shape in SHAPES:
        print(f"| {' | '.join(measure(*shape, options.clock))} |", flush=True)


if __name__ == "__main__":
    main()
