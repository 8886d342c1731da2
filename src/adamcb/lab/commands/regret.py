"""`adamcb regret`: regret on convex logistic regression against T, K and n, beside the paper's bounds.

A sweep changes one of the three and keeps the others. Every run that ends is written to regret.csv, so that a command
that was stopped goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn.functional import avg_pool2d

from adamcb import _checks
from adamcb.lab.commands.regret_runs import (
    COLUMNS,
    DEFAULT_METHODS,
    METHODS,
    RENAMED,
    RegretRun,
    Settings,
    key_of,
    measure,
)
from adamcb.lab.commands.running import add_running, check_running
from adamcb.lab.errors import LabError, writing_to
from adamcb.lab.experiment import MOST_SEEDS
from adamcb.lab.methods import check_renamed
from adamcb.lab.results import read_csv, read_json, write_csv, write_json
from adamcb.lab.tasks.datasets import DATASET_NAMES, load_dataset
from adamcb.theory import LogisticProblem, Minimum

AGAINST = ("T", "K", "n")
# Images wider than this are averaged over 2×2 pixels: a quarter of the parameters, and of the time.
_WIDEST = 16
# The least and the most of each count. `theory` measures horizons of up to 10⁹ steps.
_RANGES = {
    "seeds": (1, MOST_SEEDS),
    "steps": (2, 10**9),
    "halvings": (1, 40),
    "batch_size": (1, 10**15),
    "samples": (0, 10**15),
}


@dataclass(frozen=True)
class Design:
    """What is run.

    Attributes:
        dataset: Its name.
        against: Which of T, K and n is swept.
        methods: Names of `METHODS`.
        seeds: How many.
        steps: The largest T; K and n are swept at half of it.
        halvings: How many times T and n are halved in their sweeps.
        batch_size: K of the sweeps of T and n.
        batch_sizes: The K of their sweep; those that are not below n are left out.
        samples: n at most; 0: all.
        settings: Of every run.
    """

    dataset: str
    against: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int
    steps: int
    halvings: int
    batch_size: int
    batch_sizes: tuple[int, ...]
    samples: int
    settings: Settings

    def __post_init__(self) -> None:
        for name in self.methods:
            check_renamed(name, RENAMED)
            _checks.one_of("method", name, METHODS)
        for name, (low, high) in _RANGES.items():
            _checks.integer(name, getattr(self, name), low=low, high=high)
        if self.steps >> self.halvings < 2:
            raise ValueError(f"`steps` must be at least {2 << self.halvings}, got steps={self.steps}.")
        for size in self.batch_sizes:
            _checks.count("batch_sizes", size)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `adamcb regret`."""
    add = parser.add_argument
    add("--dataset", choices=DATASET_NAMES, default="digits", help="default: digits")
    add("--against", action="append", choices=AGAINST, help="what to sweep; may be repeated (default: all three)")
    add(
        "--method",
        action="append",
        metavar="NAME",
        help=f"{', '.join(METHODS)}; may be repeated (default: {', '.join(DEFAULT_METHODS)})",
    )
    add("--seeds", type=int, default=3, metavar="N", help="how many (default: 3)")
    add("--steps", type=int, default=1000, metavar="T", help="largest T; K and n are swept at half (default: 1000)")
    add("--halvings", type=int, default=3, metavar="N", help="how often T and n are halved (default: 3)")
    add("--batch-size", type=int, default=32, metavar="K", help="for the sweeps of T and n (default: 32)")
    sizes = "8,32,128,512"
    add("--batch-sizes", type=_sizes, default=sizes, metavar="K,K,…", help=f"for the sweep of K (default: {sizes})")
    add("--samples", type=int, default=0, metavar="N", help="use so many training images (default: all)")
    gamma = {"type": _gamma, "default": "lemma", "metavar": "GAMMA"}
    add("--exploration", **gamma, help="a number, or lemma: Lemma 2's (default: lemma)")
    add("--lr", type=float, default=0.03, help="α of α/√t (default: 0.03)")
    add("--beta1-decay", type=float, default=0.99, metavar="LAMBDA", help="λ of β₁λᵗ⁻¹ (default: 0.99)")
    add("--penalty", type=float, default=1e-3, metavar="MU", help="of the L2 term (default: 0.001)")
    add("--every", type=int, default=4, metavar="N", help="evaluate the full loss at one step in N (default: 4)")
    add_running(parser, "--out", help="result folder (default: adamcb-runs/regret-DATASET)")
    add_running(parser, "--data-dir")


def _gamma(text: str) -> float | None:
    """Return γ; None: Lemma 2's."""
    try:
        return None if text == "lemma" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number or lemma, got {text!r}.") from error


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        rule = "must be whole numbers with commas between them"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}.") from error


def run_regret(options: argparse.Namespace, parser: argparse.ArgumentParser, errors: Console, output: Console) -> int:
    """Do `adamcb regret`."""
    check_running(options, parser)
    try:
        design = _design(options)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    from adamcb.lab.output.regret import draw_figures, write_summary  # matplotlib is slow to import

    folder = options.out or Path("adamcb-runs") / f"regret-{design.dataset}"
    problem = load_problem(design, options.data_dir)
    with writing_to(folder):
        rows = _open(folder, design)
        _run(design, problem, rows, folder / "regret.csv", errors)
        for line in write_summary(folder / "summary.md", rows, design.dataset, problem):
            output.print(line, markup=False, highlight=False, soft_wrap=True)
        figures = draw_figures(folder, rows, design.dataset)
    for path in (folder / "regret.csv", folder / "summary.md", *figures):
        output.print(f"written: {path}", highlight=False, soft_wrap=True)
    return 0


def _design(options: argparse.Namespace) -> Design:
    return Design(
        dataset=options.dataset,
        against=tuple(dict.fromkeys(options.against or AGAINST)),
        methods=tuple(dict.fromkeys(options.method or DEFAULT_METHODS)),
        seeds=options.seeds,
        steps=options.steps,
        halvings=options.halvings,
        batch_size=options.batch_size,
        batch_sizes=options.batch_sizes,
        samples=options.samples,
        settings=Settings(options.exploration, options.lr, options.beta1_decay, options.penalty, options.every),
    )


def load_problem(design: Design, data_dir: str | None) -> LogisticProblem:
    """Return logistic regression on the training images, in a random order that is always the same."""
    try:
        images, labels = load_dataset(design.dataset, data_dir=data_dir).train.tensors
    except (OSError, ValueError) as error:
        raise LabError(str(error)) from error
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: design.samples or None]
    images = images[chosen].double()
    if images.shape[-1] > _WIDEST:
        images = avg_pool2d(images, 2)
    problem = LogisticProblem(images.flatten(1), labels[chosen], penalty=design.settings.penalty)
    smallest = problem.num_samples >> design.halvings if "n" in design.against else problem.num_samples
    if not design.batch_size < smallest:
        raise LabError(f"`--batch-size` must be below the smallest n, {smallest}, got {design.batch_size}.")
    return problem


def plan(design: Design, num_samples: int) -> Iterator[RegretRun]:
    """Yield every run: those of a horizon that the method does not know share one run."""
    halves = [design.steps >> power for power in range(design.halvings, -1, -1)]
    middle, n, k = design.steps // 2, num_samples, design.batch_size
    for seed in range(design.seeds):
        for name in design.methods:
            if "T" in design.against:
                by_exploration: dict[float, list[int]] = {}
                for steps in halves:
                    by_exploration.setdefault(METHODS[name].gamma(n, k, steps, design.settings), []).append(steps)
                for gamma, horizons in by_exploration.items():
                    yield RegretRun("T", name, seed, n, k, gamma, tuple(horizons))
            sizes = [(size, n) for size in design.batch_sizes if size < n] if "K" in design.against else []
            counts = [(k, n >> power) for power in range(design.halvings, -1, -1)] if "n" in design.against else []
            for sweep, points in (("K", sizes), ("n", counts)):
                for size, count in points:
                    gamma = METHODS[name].gamma(count, size, middle, design.settings)
                    yield RegretRun(sweep, name, seed, count, size, gamma, (middle,))


def _open(folder: Path, design: Design) -> list[dict[str, Any]]:
    """Return the rows that the folder holds already, or refuse if they are of another design."""
    config = {**asdict(design), "against": list(design.against), "methods": list(design.methods)}
    config["batch_sizes"] = list(design.batch_sizes)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").is_file():
        if (folder / "regret.csv").exists():
            raise LabError(f"{folder} holds regret.csv, but no config.json; give another --out.")
        write_json(folder / "config.json", config)
    before = read_json(folder / "config.json")
    different = [name for name in config if before.get(name) != config[name]]
    if different:
        raise LabError(f"{folder} holds results of other options ({', '.join(different)}); give another --out.")
    return read_csv(folder / "regret.csv") if (folder / "regret.csv").is_file() else []


def _run(design: Design, full: LogisticProblem, rows: list[dict[str, Any]], path: Path, errors: Console) -> None:
    """Do the runs that are not yet in `rows`, and add theirs."""
    done = {key_of(row) for row in rows}
    problems: dict[int, tuple[LogisticProblem, Minimum]] = {}
    todo = [run for run in plan(design, full.num_samples) if not set(run.keys()) <= done]
    with errors.status("") as status:
        for number, run in enumerate(todo):
            named = f"{run.method}, {run.sweep} sweep, seed {run.seed}"
            status.update(f"{number} of {len(todo)} runs done; now {named}")
            try:
                if run.num_samples not in problems:
                    problem = full if run.num_samples == full.num_samples else full.subset(run.num_samples)
                    problems[run.num_samples] = (problem, problem.minimize())
                rows += measure(run, *problems[run.num_samples], design.settings)
            except (ValueError, ArithmeticError, RuntimeError) as error:  # too large for the bounds, or no minimum
                raise LabError(f"{named}: {error}") from error
            write_csv(path, COLUMNS, rows)
