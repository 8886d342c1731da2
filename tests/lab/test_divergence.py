"""A comparison whose runs became NaN, from the command to the page."""

import json
import re

import pytest

from adamcb.lab.commands.cli import main
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import get_method
from adamcb.lab.output.report._read import read_folder
from adamcb.lab.output.report._table import finals
from adamcb.lab.results.summary import first_at
from adamcb.lab.runs.building import warm_up
from adamcb.lab.runs.evaluation import refuse_divergence
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task
from tests.lab.commands import read_rows, runs_here

OPTIONS = ["compare", "--fraction", "0.2", "--batch-size", "60", "--epochs", "2", "--seeds", "2"]
METHODS = ["--method", "adam", "--method", "adamcb"]

# In the second of its runs, parameters are NaN after the third step. (It is built once before, to see if it can be.)
BREAKING = """
from pathlib import Path
import torch
from adamcb.lab import Method

class Breaking(torch.optim.Adam):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        with (Path(__file__).parent / "built").open("a+") as file:
            file.write("!")
            file.seek(0)
            self.breaks, self.steps = len(file.read()) == 3, 0

    def step(self, closure=None):
        super().step(closure)
        self.steps += 1
        if self.breaks and self.steps == 3:
            for parameter in self.param_groups[0]["params"]:
                parameter.data.fill_(float("nan"))

mine = Method("mine", "Mine", optimizer=Breaking)
"""


@pytest.mark.parametrize("lr", ["1e30", "1e300"])
def test_if_every_run_diverges_the_command_says_so_and_fails(lr, tmp_path, capfd, here):
    out = tmp_path / "out"
    assert main([*OPTIONS, *METHODS, "--lr", lr, "--out", str(out)]) == 1
    printed = capfd.readouterr()
    assert "Every run diverged, so there is nothing to compare." in printed.err
    assert "Traceback" not in printed.err
    assert re.search(r"Adam \(2 of 2 .*\n.* diverged\)", printed.out)  # in a narrow column
    assert main([*OPTIONS, *METHODS, "--lr", lr, "--out", str(out), "--json"]) == 1
    content = json.loads(capfd.readouterr().out)
    assert [record["diverged_runs"] for record in content["summary"]] == [2, 2]
    assert all(record["final_train_loss"] is None for record in content["summary"])


@pytest.mark.parametrize("method", ["adam", "adamcb", "adamcb-paper"])
def test_a_warm_up_that_diverges_leaves_it_to_the_run_to_say_so(method):
    task = image_task(load_dataset("digits"), "mlp")
    warm_up(Experiment(lr=1e30).completed(task), get_method(method), task)


def test_a_loss_that_is_finite_and_enormous_has_diverged(tmp_path, capfd, here):
    """A linear model survives any learning rate without a NaN, and no method "reaches" such a loss at step 0."""
    linear = ["--model", "logistic", "--seeds", "1", "--lr", "1e30"]
    assert main([*OPTIONS, *METHODS, *linear, "--out", str(tmp_path / "out")]) == 1
    printed = capfd.readouterr()
    assert "Every run diverged, so there is nothing to compare." in printed.err
    rows = read_rows(tmp_path / "out" / "results.csv")
    ended = r"step 8: the training loss ended at \S+e\+30, and it was 2\.29 before the first step\."
    assert len(rows) == 6
    assert all(re.fullmatch(ended, row["diverged"]) for row in rows)


@pytest.mark.parametrize(
    "losses", [[2.3, 0.1], [2.3, 5.0], [0.0, 9.9], [1e-3, 5.0], [-3.0, 20.0], [2000.0, 9000.0], [2.3, 1e9, 0.5], [0.7]]
)
def test_a_loss_that_ends_a_little_above_its_start_has_not_diverged(losses):
    refuse_divergence(losses)


@pytest.mark.parametrize("losses", [[2.3, 26.0], [0.0, 10.1], [-3.0, 28.0], [2000.0, 23_000.0], [2.3, 0.5, 3.5e30]])
def test_a_loss_that_ends_far_above_its_start_has_diverged(losses):
    with pytest.raises(
        FloatingPointError, match=r"the training loss ended at .*, and it was .* before the first step\."
    ):
        refuse_divergence(losses)


def test_no_run_is_at_the_end_of_another_before_its_first_step():
    rows = [{"step": step, "train_loss": loss} for step, loss in ((0, 1.0), (10, 3.0), (20, 2.0))]
    assert first_at(rows, 2.5) == rows[2]
    assert first_at(rows[:2], 2.5) is None


@pytest.fixture(scope="module")
def one_of_two(tmp_path_factory):
    """One of the two runs of a method diverged; its rows up to there are in the folder."""
    folder = tmp_path_factory.mktemp("diverged")
    (folder / "breaking.py").write_text(BREAKING)
    method = ["--method", "adam", "--method", f"{folder / 'breaking.py'}:mine"]
    with runs_here():
        assert main([*OPTIONS, *method, "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_every_row_of_a_run_that_diverged_is_marked(one_of_two):
    rows = read_rows(one_of_two / "results.csv")
    assert {(row["method"], row["seed"]) for row in rows if row["diverged"]} == {("mine", "1")}
    own = [row for row in rows if (row["method"], row["seed"]) == ("mine", "1")]
    assert len(own) == 1  # before the first step
    assert all(re.match(r"step \d+: ", row["diverged"]) for row in own)


def test_it_counts_for_no_mean_and_no_winner(one_of_two):
    rows = read_rows(one_of_two / "results.csv")
    good = [row for row in rows if row["method"] == "mine" and not row["diverged"]]
    record = read_rows(one_of_two / "summary.csv")[1]
    assert (record["runs"], record["diverged_runs"]) == ("1", "1")
    assert record["final_train_loss"] == good[-1]["train_loss"]
    text = (one_of_two / "summary.md").read_text()
    assert "1 of its 2 runs diverged: do not use it here." in text
    assert "| Mine (1 of 2 diverged) |" in text
    folder = read_folder(one_of_two)
    assert finals(folder, "train_loss")["mine"][0] == float(good[-1]["train_loss"])
    page = (one_of_two / "report.html").read_text()
    assert "Runs that diverged are in no mean." in page
    assert "diverged: step" in page
