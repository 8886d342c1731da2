"""torchrun starts the command line and the example, and they end as they do in one process."""

import contextlib
import csv
import gc
import io
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch.distributed as dist
from pytest import approx
from torch.distributed import destroy_process_group
from torch.nn.parallel import DistributedDataParallel

from adamcb.lab.commands.cli import main
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import read_json
from adamcb.lab.runs import Run
from tests.distributed.launch import launch_as_torchrun
from tests.patience import patience

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
OPTIONS = ["compare", "--dataset", "digits", "--method", "adamcb", "--seeds", "1", "--steps", "12", "--epochs", "2"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_torchrun(folder: Path) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "adamcb", *OPTIONS, "--out", "together"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience(280.0), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_ranks(folder: Path) -> str:
    """As torchrun would start it, but from a process that has done the imports."""
    first, second = launch_as_torchrun(2, in_rank, str(folder), None, [*OPTIONS, "--out", "together"])
    assert first[0] == second[0] == 0, first[2] + second[2]
    return first[1] + second[1]


@pytest.mark.parametrize("compare", [in_ranks, pytest.param(by_torchrun, marks=pytest.mark.slow)])
def test_compare_under_torchrun_gives_what_one_process_gives(compare, tmp_path):
    assert compare(tmp_path).count("results: ") == 1  # one of them tells
    assert (tmp_path / "together" / "report.html").is_file()
    experiment = Experiment(methods=("adamcb",), seeds=1, epochs=2, max_steps=12)
    task = experiment.load_task()
    Run(experiment, "adamcb", 0, task, tmp_path, lambda progress: None).train()
    expected = read_json(next(tmp_path.glob(".runs/*/done.json")))["results"]
    actual = rows(tmp_path / "together" / "results.csv")
    assert [row["step"] for row in actual] == ["0", "11", "12"]
    for one, other in zip(actual, expected, strict=True):
        for name in ("train_loss", "test_loss", "train_accuracy", "test_accuracy"):
            assert float(one[name]) == approx(other[name], rel=1e-5)


def destroy_when_models_are_gone() -> None:
    """End the process group, if no wrapped model is alive.

    Its reducer would hold the group, and end it with Python's lock held. A thread of gloo that still has a tensor to
    let go of waits for that lock, and is waited for: one time in some hundreds, the process hangs.
    """
    assert not any(type(thing) is DistributedDataParallel for thing in gc.get_objects())
    destroy_process_group()


def in_rank(folder: str, script: str | None, arguments: list[str]) -> tuple[int, str, str]:
    """Run a script, or the command line, as torchrun would; return exit code and output."""
    os.chdir(folder)
    dist.destroy_process_group = destroy_when_models_are_gone
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            if script is None:
                code = main(arguments)
            else:
                sys.argv = [script, *arguments]
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            code = 1
            traceback.print_exc()
    return code, output.getvalue(), errors.getvalue()


def test_compare_says_what_is_wrong_once(tmp_path):
    first, second = launch_as_torchrun(2, in_rank, str(tmp_path), None, [*OPTIONS, "--batch-size", "33"])
    assert (first[0], second[0]) == (1, 1)
    assert "`--batch-size` must be a multiple of the number of processes, 2, got 33." in first[2]
    assert second[1:] == ("", "")


@pytest.mark.parametrize("sharded", [[], ["--sharded"]], ids=["shared", "sharded"])
@pytest.mark.slow
def test_the_example_learns_logs_and_goes_on(tmp_path, sharded):
    options = ["--dataset", "digits", "--batch-size", "64", "--csv", "run.csv", "--checkpoint", "run.pt", *sharded]
    for epochs in ("1", "4"):
        arguments = [*options, "--epochs", epochs]
        first, second = launch_as_torchrun(2, in_rank, str(tmp_path), str(EXAMPLE), arguments)
        assert first[0] == second[0] == 0, first[2] + second[2]
    assert "epoch 1" not in first[1]
    assert "epoch 4: accuracy 9" in first[1]
    assert second[1] == ""
    logged = rows(tmp_path / "run.csv")
    assert [row["steps"] for row in logged] == ["22", "44", "66", "88"]
    assert 0.0 < float(logged[-1]["coverage"]) < 1.0
