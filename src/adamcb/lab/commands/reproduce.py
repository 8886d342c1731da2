"""`adamcb reproduce`: the paper's figures, in its setting or reduced to minutes.

The paper (Table 2): 10 epochs, batch size 128, learning rate 0.001, five seeds, all of the data. `quick` is chosen so
that a figure takes at most ten minutes on two cores; what was reduced stands on the figure. AdamCB as it comes is
drawn beside the paper's methods, and the figure says that it is not in the paper.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from adamcb import _checks
from adamcb.lab.commands.compare import Options, run_comparison
from adamcb.lab.errors import LabError, writing_to
from adamcb.lab.experiment import Experiment, given_options
from adamcb.lab.methods import OURS
from adamcb.lab.output.figures import draw_paper_figure
from adamcb.lab.output.tables import terminal_table
from adamcb.lab.results.kept import KeptRuns
from adamcb.lab.results.summary import all_diverged

MAIN_METHODS = ("adam", "adamx-paper", "adambs", "adamcb-paper", OURS)
ALL_METHODS = ("adam", "amsgrad", "adamx-paper", "adambs-original", "adambs", "adamcb-paper", OURS)
THREE_SETS = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Scale:
    """How much is run; the default is the paper's."""

    epochs: int = 10
    seeds: int = 5
    fraction: float = 1.0
    batch_size: int = 128
    max_steps: int | None = None

    def reductions(self) -> str:
        """Return how this differs from the paper's setting, in words; empty if it does not."""
        paper, parts = Scale(), []
        if self.fraction != paper.fraction:
            parts.append(f"{100 * self.fraction:g} % of the data")
        if self.epochs != paper.epochs:
            parts.append(f"{self.epochs} epoch{'s' * (self.epochs > 1)} instead of {paper.epochs}")
        if self.seeds != paper.seeds:
            parts.append(f"{self.seeds} seed{'s' * (self.seeds > 1)} instead of {paper.seeds}")
        if self.batch_size != paper.batch_size:
            parts.append(f"batches of {self.batch_size} instead of {paper.batch_size}")
        if self.max_steps is not None:
            parts.append(f"at most {self.max_steps} step{'s' * (self.max_steps > 1)}")
        return ", ".join(parts)


# What the command line may change.
OVERRIDES = ("methods", *(each.name for each in fields(Scale)))


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        title: What it shows.
        model: The model.
        quick: How it is reduced to minutes.
        datasets: One column each.
        methods: What is compared.
        jobs: Processes, where the memory does not hold one a core.
    """

    title: str
    model: str
    quick: Scale
    datasets: tuple[str, ...] = ("cifar10",)
    methods: tuple[str, ...] = ALL_METHODS
    jobs: int | None = None


FIGURES = {
    "1": PaperFigure("Figure 1: MLP", "mlp", Scale(10, 3, 0.2), THREE_SETS, MAIN_METHODS),
    "2": PaperFigure("Figure 2: CNN", "cnn", Scale(5, 2, 0.03, 32), THREE_SETS, MAIN_METHODS),
    "mlp": PaperFigure("Figure 3: MLP, all optimizers", "mlp", Scale(10, 3, 0.3)),
    "cnn": PaperFigure("Figure 4: CNN, all optimizers", "cnn", Scale(5, 2, 0.03, 32)),
    "vgg": PaperFigure("Figure 5: VGG, all optimizers", "vgg", Scale(4, 1, 0.02, 32)),
    "logistic": PaperFigure("Figure 6: logistic regression", "logistic", Scale(10, 3), ("mnist",)),
    "resnet18": PaperFigure("Figure 7: ResNet-18", "resnet18", Scale(3, 1, 0.01, 32)),
    "convnext-base": PaperFigure("Figure 8: ConvNeXt-Base", "convnext-base", Scale(3, 1, 0.008, 32)),
    "convnext-large": PaperFigure("Figure 9: ConvNeXt-Large", "convnext-large", Scale(3, 1, 0.004, 32), jobs=1),
}
# The appendix's figures by number.
NUMBERS = dict(zip("3456789", list(FIGURES)[2:], strict=True))


def figure_names(wanted: str) -> list[str]:
    """Return the figures that a name, a number or "all" stands for.

    Raises:
        LabError: There is no such figure.
    """
    if wanted == "all":
        return list(FIGURES)
    name = NUMBERS.get(wanted, wanted)
    if name not in FIGURES:
        known = ", ".join((*FIGURES, *NUMBERS, "all"))
        raise LabError(f"`FIGURE` must be one of {known}, got {wanted!r}.")
    return [name]


def reproduce(
    chosen: argparse.Namespace, options: Options, parser: argparse.ArgumentParser, errors: Console, output: Console
) -> int:
    """Draw the figures that the command line asks for; `chosen` are its options."""
    try:
        names = figure_names(chosen.figure)
        experiments = {name: _experiments(FIGURES[name], chosen) for name in names}
    except (LabError, ValueError, TypeError, FileNotFoundError) as error:
        parser.error(str(error))
    out = options.out or Path("adamcb-runs") / f"reproduce-{chosen.scale}"
    if chosen.rows is not None:
        with writing_to(chosen.rows, "--rows"):  # now, not after the first run
            chosen.rows.mkdir(parents=True, exist_ok=True)
    for name in names:
        for path in _draw(name, experiments[name], replace(options, out=out), chosen.rows, errors, output):
            output.print(f"figure: {path}", highlight=False, soft_wrap=True)
    return 0


def _experiments(figure: PaperFigure, chosen: argparse.Namespace) -> list[Experiment]:
    """Return one experiment for each dataset of a figure."""
    scale = _scale(figure, chosen)
    if chosen.dataset is not None:
        _checks.one_of("--dataset", chosen.dataset, figure.datasets)
    experiments = [
        Experiment(
            dataset=dataset,
            model=figure.model,
            methods=tuple(chosen.methods or figure.methods),
            schedule="constant",
            **asdict(scale),
        )
        for dataset in figure.datasets
        if chosen.dataset in (None, dataset)
    ]
    experiments[0].resolve_methods()
    return experiments


def _scale(figure: PaperFigure, chosen: argparse.Namespace) -> Scale:
    scale = figure.quick if chosen.scale == "quick" else Scale()
    return replace(scale, **given_options(chosen, [each.name for each in fields(Scale)]))


def _notes(experiment: Experiment) -> tuple[str, ...]:
    scale: Any = {each.name: getattr(experiment, each.name) for each in fields(Scale)}
    reduced = Scale(**scale).reductions()
    notes = [f"Reduced from the paper's setting: {reduced}."] if reduced else ["In the paper's setting."]
    if OURS in experiment.methods:
        notes.append("AdamCB as it comes is not in the paper.")
    return tuple(notes)


def _kept(rows: Path, experiment: Experiment) -> KeptRuns:
    """Return the runs of an experiment that are kept in a folder of CSV files, one for each model and dataset."""
    scale = [each.name for each in fields(Scale) if each.name != "seeds"]
    settings = {name: getattr(experiment, name) for name in scale}
    return KeptRuns(rows / f"{experiment.model}-{experiment.dataset}-runs.csv", settings)


def _draw(
    name: str,
    experiments: Sequence[Experiment],
    options: Options,
    rows: Path | None,
    errors: Console,
    output: Console,
) -> list[Path]:
    """Do the runs of a figure, one dataset after another, and draw it."""
    figure, notes = FIGURES[name], _notes(experiments[0])
    assert options.out is not None
    parts: list[tuple[Any, Any]] = []
    for experiment in experiments:
        errors.print(f"{figure.title} on {experiment.dataset}", markup=False, highlight=False)
        place = options.out / f"figure-{name}" / experiment.dataset
        own = replace(options, out=place, jobs=options.jobs or figure.jobs, notes=notes)
        with contextlib.ExitStack() as at_end:
            if rows is not None:
                kept = _kept(rows, experiment)
                with writing_to(place):
                    kept.give(place)
                at_end.callback(_take, kept, rows, place)  # stopped or not
            part = run_comparison(experiment, own, errors)
        output.print(terminal_table(part.summary, part.config, output.width))
        if all_diverged(part.summary):
            raise LabError(part.verdict)
        parts.append((part.results, part.config))
    with writing_to(options.out):
        return draw_paper_figure(options.out, f"figure-{name}", figure.title, parts, notes)


def _take(kept: KeptRuns, rows: Path, place: Path) -> None:
    with writing_to(rows, "--rows"):
        kept.take(place)
