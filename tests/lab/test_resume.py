"""Whole comparisons that are killed or stopped, and the same command again."""

import os
import signal
from pathlib import Path

import pytest

from adamcb.lab.commands.cli import main
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import ResultFolder
from adamcb.lab.tasks.load import load_image_task
from tests.lab.commands import CLOCKS, processes_of_group, read_rows, run, start, wait_until
from tests.patience import patience

# Long enough to be caught in the middle.
OPTIONS = ("compare", "--dataset", "digits", "--method", "adam", "--method", "adamcb", "--seeds", "1", "--epochs", "40")


def columns(folder: Path) -> list[list[dict[str, str]]]:
    return [read_rows(folder / name, without=CLOCKS) for name in ("results.csv", "selection.csv")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    finished = run(*OPTIONS, "--out", out)
    assert finished.returncode == 0, finished.stderr
    return out


def stop_midway(out: Path, number: int, *, everybody: bool):
    """Start, wait until both runs have saved something, and send a signal to the command or to its whole group."""
    process = start(*OPTIONS, "--out", out, "--checkpoint-seconds", "0.05")
    saved = (".runs/*/checkpoint.pt", ".runs/*/done.json")  # the second if one run was much faster than the other
    wait_until(lambda: sum(len(list(out.glob(name))) for name in saved) >= 2 or process.poll() is not None)
    assert process.poll() is None, "it should have been stopped before the end"
    (os.killpg if everybody else os.kill)(process.pid, number)
    printed = process.communicate(timeout=patience(60.0))[1]
    wait_until(lambda: not processes_of_group(process.pid))
    assert not (out / "results.csv").exists(), "it should have been stopped before the end"
    return process.returncode, printed


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_numbers(undisturbed, tmp_path):
    """SIGKILL to the command alone: its workers must not live on, nor leave anything that misleads the next."""
    code, _ = stop_midway(tmp_path, signal.SIGKILL, everybody=False)
    assert code == -signal.SIGKILL
    assert len(list(tmp_path.glob(".runs/*/checkpoint.pt"))) >= 1
    finished = run(*OPTIONS, "--out", tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert columns(tmp_path) == columns(undisturbed)
    seconds = [float(row["seconds"]) for row in read_rows(tmp_path / "results.csv") if row["method"] == "adam"]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(undisturbed, tmp_path):
    """SIGINT to everybody, as a terminal sends it."""
    code, printed = stop_midway(tmp_path, signal.SIGINT, everybody=True)
    assert code == 130
    assert "stopped. The same command goes on where it stopped." in printed
    assert "Traceback" not in printed
    finished = run(*OPTIONS, "--out", tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert columns(tmp_path) == columns(undisturbed)


def test_two_commands_do_not_write_to_one_folder(tmp_path, capsys):
    experiment = Experiment(methods=("adam",), seeds=1, epochs=2)
    task = load_image_task("digits", "mlp", fraction=1.0, label_noise=None, data_dir=None)
    config = experiment.as_config(task)
    folder = ResultFolder(tmp_path, config)
    try:
        options = ["--dataset", "digits", "--method", "adam", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path)]
        assert main(["compare", *options]) == 1
        assert f"Another adamcb is writing to {tmp_path}" in capsys.readouterr().err
    finally:
        folder.close()
