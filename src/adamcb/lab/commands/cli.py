"""The command line: `adamcb`, or `python -m adamcb`.

Exit codes: 0 done, 1 an error that the message explains, 2 bad options, 130 stopped by Ctrl-C (143 by SIGTERM).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adamcb.lab.commands.running import add_running, file_to_write, folder_to_write
from adamcb.lab.signals import STOPPED, exit_code

if TYPE_CHECKING:
    from rich.console import Console

    from adamcb.lab.commands.compare import Options
    from adamcb.lab.experiment import Experiment

# What the extra installs, by the names that are imported.
LAB_PACKAGES = ("matplotlib", "PIL", "pooch", "rich", "scipy", "sklearn")
BENCHMARKS = {
    "selection": "drawing and learning, against other samplers",
    "norms": "per-sample gradient norms, against other packages",
    "optimizer": "AdamX, against torch's optimizers",
    "step": "a whole training step, against a plain one",
    "time-to-loss": "how soon each method reaches Adam's final loss; takes hours",
    "budget": "quality against samples and seconds, with decayed learning rates; takes hours",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    missing = [name for name in LAB_PACKAGES if not _installed(name)]
    if missing:
        print(
            f"adamcb: the command line needs {', '.join(missing)}, not installed here: pip install '.[lab]' in a clone",
            file=sys.stderr,
        )
        return 1
    from adamcb.lab.errors import LabError, describe

    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options, parser)
    except (LabError, OSError) as error:
        print(f"adamcb: error: {describe(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(STOPPED, file=sys.stderr)
        return exit_code(interrupt)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; `run` in what it parses is the function to call."""
    import adamcb

    parser = argparse.ArgumentParser(prog="adamcb", description="Compare ways of choosing training batches.")
    parser.add_argument("--version", action="version", version=f"adamcb {adamcb.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_compare(commands)
    _add_reproduce(commands)
    _add_regret(commands)
    _add_inspect(commands)
    _add_bench(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    parser.set_defaults(run=lambda options, _: run(options, parser))
    return parser


def _add_compare(commands: Any) -> None:
    from adamcb.lab.experiment import OPTIONS, add_options
    from adamcb.lab.output.logs import LOGS

    parser = _command(commands, "compare", run_compare, "train one model on one dataset with several methods and seeds")
    add_options(parser, [name for name in OPTIONS if name != "evaluations"])
    add = parser.add_argument
    _add_running(parser)
    add("--log", action="append", choices=LOGS, help="write rows there too, as they come (may be repeated)")
    add("--config", type=Path, metavar="FILE.toml", help="options from a file; those of the command line count more")
    add("--json", action="store_true", help="print the summary as JSON on standard output, and nothing else there")


def _add_running(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to run, not what."""
    add_running(parser, "--jobs", help="processes (default: one a core; on an accelerator 1)")
    add_running(parser, "--out", help="result folder (default: named after the options)")
    add_running(parser, "--data-dir", "--checkpoint-seconds")


def _add_reproduce(commands: Any) -> None:
    from adamcb.lab.commands.reproduce import FIGURES, OVERRIDES
    from adamcb.lab.experiment import add_options

    parser = _command(commands, "reproduce", run_reproduce, "redraw the paper's figures")
    add = parser.add_argument
    add("figure", metavar="FIGURE", help=f"{', '.join(FIGURES)}, or all")
    add(
        "--scale", choices=("quick", "full"), default="quick", help="full: as in the paper; quick: ten minutes a figure"
    )
    add("--dataset", metavar="NAME", help="only this one of the figure's datasets")
    add_options(parser, OVERRIDES, instead_of="the figure's")
    add(
        "--rows",
        type=folder_to_write,
        metavar="DIR",
        help="keep all runs in CSV files there too; do not repeat those they have",
    )
    _add_running(parser)


def _add_regret(commands: Any) -> None:
    from adamcb.lab.commands.regret import add_options

    text = "measure regret on convex logistic regression against T, K and n, beside the paper's bounds"
    add_options(_command(commands, "regret", run_regret, text))


def _add_inspect(commands: Any) -> None:
    text = "show the samples that are hard or mislabeled, the most suspicious first"
    parser = _command(commands, "inspect", run_inspect, text)
    parser.add_argument("folder", type=Path, metavar="RUN", help="a result folder, or one of its samples/*.npz files")
    parser.add_argument("--method", metavar="NAME", help="default: the last of the comparison that has pictures")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--out", type=file_to_write, metavar="FILE.png", help="default: inspect-METHOD-seedN.png in the folder"
    )
    parser.add_argument("--count", type=int, default=48, metavar="N", help="how many to show; default: 48")
    parser.add_argument("--csv", type=file_to_write, metavar="FILE", help="write the table of all samples")


def _add_bench(commands: Any) -> None:
    parser = _command(commands, "bench", run_bench, "measure against peers, from a checkout of the repository")
    parser.add_argument("name", nargs="?", choices=(*BENCHMARKS, "all"), help="left out: a list of what there is")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="passed on to the benchmark")


def run_compare(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do `adamcb compare`."""
    from adamcb.lab.commands.compare import run_comparison
    from adamcb.lab.commands.config import apply_config
    from adamcb.lab.output.tables import json_summary, print_verdict, terminal_table
    from adamcb.lab.results.summary import all_diverged

    if options.config is not None:
        apply_config(options.config, options)
    experiment = _experiment(options, parser)
    comparison = run_comparison(experiment, running_options(options, parser), _errors())
    code = int(all_diverged(comparison.summary))
    if options.json:
        print(json.dumps(json_summary(comparison.summary, comparison.config, comparison.files), allow_nan=False))
        return code
    console = _output()
    console.print(terminal_table(comparison.summary, comparison.config, console.width))
    for what, path in comparison.files.items():
        console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    print_verdict(_errors() if code else console, comparison.verdict)
    return code


def _experiment(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Experiment:
    """Return the experiment that the options describe, or end with what is wrong with them."""
    from adamcb._checks import nearest
    from adamcb.lab.errors import LabError
    from adamcb.lab.experiment import OF_IMAGES, Experiment, given_options
    from adamcb.lab.paths import fault_of
    from adamcb.lab.references import split_reference
    from adamcb.lab.tasks.datasets import DATASET_NAMES
    from adamcb.lab.tasks.load import DEFAULT_TASK
    from adamcb.lab.tasks.models import MODEL_NAMES

    if options.task is None and all(getattr(options, name) is None for name in ("dataset", "model", *OF_IMAGES)):
        options.task = DEFAULT_TASK
    if options.task is not None and (options.dataset or options.model):
        parser.error("`--task` brings its own data and model: leave out --dataset and --model.")
    if options.dataset is not None and (fault := fault_of(options.dataset)):
        parser.error(f"`--dataset` {fault}")
    if options.dataset is not None and options.dataset not in DATASET_NAMES and not os.path.isdir(options.dataset):
        near = nearest(options.dataset, DATASET_NAMES)
        parser.error(
            f"`--dataset` must be one of {', '.join(DATASET_NAMES)}, or a folder, got {options.dataset!r}.{near}"
        )
    if options.model is not None and options.model not in MODEL_NAMES and ":" not in options.model:
        near = nearest(options.model, MODEL_NAMES)
        parser.error(
            f"`--model` must be one of {', '.join(MODEL_NAMES)}, or FILE.py:NAME, got {options.model!r}.{near}"
        )
    try:
        for option, reference in (("--model", options.model), ("--task", options.task)):
            if reference and ":" in reference:
                split_reference(reference, option)
        experiment = Experiment(**given_options(options))
        experiment.resolve_methods()
    except (ValueError, TypeError, FileNotFoundError, LabError) as error:
        parser.error(str(error))
    return experiment


def running_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    """Return how to run, or end with what is wrong with it."""
    from adamcb.lab.commands.compare import Options
    from adamcb.lab.commands.running import check_running

    check_running(options, parser)
    return Options(
        out=options.out,
        data_dir=options.data_dir,
        jobs=options.jobs,
        logs=tuple(dict.fromkeys(getattr(options, "log", None) or ())),
        checkpoint_seconds=options.checkpoint_seconds,
    )


def run_reproduce(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do `adamcb reproduce`."""
    from adamcb.lab.commands.reproduce import reproduce

    return reproduce(options, running_options(options, parser), parser, _errors(), _output())


def run_regret(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do `adamcb regret`."""
    from adamcb.lab.commands import regret

    return regret.run_regret(options, parser, _errors(), _output())


def run_inspect(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do `adamcb inspect`."""
    from adamcb.lab.commands.inspect import inspect_run

    files = {"count": options.count, "csv": options.csv}
    return inspect_run(options.folder, options.method, options.seed, options.out, _output(), **files)


def run_bench(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Do `adamcb bench`."""
    from adamcb.lab.commands.bench import run_benchmarks

    if options.name is None:
        print("adamcb bench NAME measures:")
        for name, what in BENCHMARKS.items():
            print(f"  {name:<14}{what}")
        print(f"  {'all':<14}all of them that do not take hours")
        return 0
    names = tuple(BENCHMARKS) if options.name == "all" else (options.name,)
    return run_benchmarks(names, options.options)


def _errors() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _output() -> Console:
    from rich.console import Console

    console = Console()
    # A log has no width: as wide as can be read, and the same on every machine.
    return console if console.is_terminal else Console(width=100)
