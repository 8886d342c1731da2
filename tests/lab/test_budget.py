"""`adamcb bench budget`: how each method spends its budget, rows that are not run twice, and the report."""

import math

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.lab.commands import budget
from adamcb.lab.commands.bench import run_benchmarks
from adamcb.lab.commands.budget import RowFile, load
from adamcb.lab.methods.rivals import InfoBatch
from adamcb.lab.output.budget import write_report
from adamcb.lab.results import read_csv
from adamcb.lab.results.budget import HELD_OUT, best_lrs, reported
from adamcb.lab.runs.budget import LABELS, make_plan, run_budget


@pytest.fixture(scope="module")
def task():
    return load("digits-mlp", None)[0]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_each_method_spends_its_budget_in_its_own_way(task):
    plans = {name: make_plan(name, task, 10, 0.25, 0) for name in LABELS}
    whole = 10 * (1438 // 32)
    sizes = {name: (len(plan.task.train), plan.batch_size, plan.steps) for name, plan in plans.items()}
    assert sizes == {
        "adam": (1438, 32, whole // 4),
        "small-batches": (1438, 8, whole),
        "random-pruning": (360, 32, 10 * (360 // 32)),
        "infobatch": (1438, 32, None),
        "adamcb-quieter": (1438, 32, whole // 4),
        "adamcb-smaller": (1438, 32, whole // 4),
    }
    assert plans["adamcb-quieter"].method.min_batch_size is None
    assert plans["adamcb-smaller"].method.min_batch_size == 16
    kept = plans["random-pruning"].task.train.indices
    assert len(set(kept)) == 360
    assert kept == make_plan("random-pruning", task, 10, 0.25, 0).task.train.indices
    assert kept != make_plan("random-pruning", task, 10, 0.25, 1).task.train.indices


@pytest.mark.parametrize("method", LABELS)
def test_a_run_counts_its_samples_and_ends_at_the_end_of_its_schedule(method, task, monkeypatch):
    from adamcb.lab.runs import budget as runs

    rates, sizes = [], []
    train = runs.train_batch

    def note(trainer, task, method, model, batch):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        sizes.append(len(batch.draw))
        return train(trainer, task, method, model, batch)

    monkeypatch.setattr(runs, "train_batch", note)
    row = run_budget(method, task, epochs=4, fraction=0.5, seed=0, lr=None)
    assert (row["steps"], row["samples"]) == (len(sizes), sum(sizes))
    assert rates[0] == approx(1e-3)
    assert all(later < earlier for earlier, later in zip(rates, rates[1:], strict=False))
    assert 0.0 < rates[-1] < 1e-5  # one step before 0
    assert row["diverged"] == ""
    assert 0.0 < row["train_loss"] < 1.0
    assert row["test_accuracy"] > 0.9
    assert row["seconds"] > 0.0
    if method == "adamcb-smaller":
        assert min(sizes) < 32
    elif method == "infobatch":
        assert row["samples"] < 2 * 1408
    else:
        assert row["samples"] == approx(2 * 1408, rel=0.02)


def test_infobatch_counts_its_own_epochs():
    selection = InfoBatch(100, 10, total_epochs=3.0, generator=torch.Generator().manual_seed(0))
    progress, sizes = [selection.progress], []
    while selection.progress < 1.0 - 1e-9:
        draw = selection.draw()
        selection.update(draw, np.where(draw.indices < 50, 0.1, 1.0))
        progress.append(selection.progress)
        sizes.append(len(draw))
    assert len(sizes) == 10 + 7 + 7  # of the easy half, a half is left out of the second epoch and of the third
    assert progress[10] == approx(1 / 3)
    assert progress[17] == approx(2 / 3)
    again = InfoBatch(100, 10, total_epochs=3.0, generator=torch.Generator().manual_seed(1))
    again.load_state_dict(selection.state_dict())
    assert again.progress == selection.progress
    with pytest.raises(ValueError, match="`total_steps` or `total_epochs` must be given, and not both"):
        InfoBatch(100, 10)


def test_rows_are_appended_and_not_run_again(tmp_path, monkeypatch, capsys):
    done = []

    def pretend(assignment, data_dir):
        done.append(assignment)
        share = assignment.fraction
        losses = {"train_loss": 0.5 * share, "test_loss": 0.4, "test_accuracy": 0.9}
        costs = {"steps": 10, "samples": round(100 * share), "seconds": share, "wall_seconds": 1.0}
        return {**vars(assignment), "epochs": 10, "lr": assignment.lr or 1e-3, "diverged": "", **losses, **costs}

    class Here:
        def __init__(self, *arguments, **options):
            pass

        def submit(self, function, *arguments):
            from concurrent.futures import Future

            future: Future = Future()
            future.set_result(function(*arguments))
            return future

        def shutdown(self, **options):
            pass

    monkeypatch.setattr(budget, "do_assignment", pretend)
    monkeypatch.setattr(budget, "ProcessPoolExecutor", Here)
    rows = tmp_path / "evidence" / "budget.csv"
    options = ["--task", "digits-mlp", "--seed", "0", "--seed", "1", "--rows", str(rows)]
    assert run_benchmarks(["budget"], [*options, "--fraction", "1"]) == 0
    assert len(done) == 2 * 4  # with the whole budget, smaller batches and pruning are Adam
    assert run_benchmarks(["budget"], [*options, "--fraction", "1", "--fraction", "0.5"]) == 0
    assert len(done) == 2 * 4 + 2 * 6
    assert run_benchmarks(["budget"], [*options, "--fraction", "1", "--method", "adam", "--tune"]) == 0
    tuned = [(assignment.seed, assignment.lr) for assignment in done[20:23]]
    assert tuned == [(HELD_OUT, lr) for lr in (3e-4, 1e-3, 3e-3)]
    found = read_csv(rows)
    assert len(found) == len(done) == len({tuple(row.values()) for row in found})
    first = next(row for row in found if row["method"] == "adam")
    assert (first["seed"] in (0, 1), first["samples"], first["lr"]) == (True, 100, 1e-3)
    page = (tmp_path / "evidence" / "budget.md").read_text()
    assert "| 50 % | InfoBatch | 2 | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] |" in page
    assert (tmp_path / "evidence" / "budget.png").is_file()
    assert str(tmp_path / "evidence" / "budget.svg") in capsys.readouterr().out


def row(method: str, seed: int, **changes) -> dict:
    base = {
        "task": "digits-mlp",
        "method": method,
        "seed": seed,
        "fraction": 1.0,
        "epochs": 10,
        "lr": 1e-3,
        "steps": 10,
    }
    costs = {"samples": 100, "seconds": 2.0, "wall_seconds": 2.0, "diverged": ""}
    return {**base, **costs, "train_loss": 0.1 * (1 + seed), "test_loss": 0.2, "test_accuracy": 0.9, **changes}


def test_learning_rates_are_tuned_on_a_seed_that_is_not_reported():
    rows = [row("adam", HELD_OUT, lr=lr, test_accuracy=accuracy) for lr, accuracy in ((3e-4, 0.8), (3e-3, 0.95))]
    rows += [row("adam", HELD_OUT, lr=1e-3, diverged="step 3", test_accuracy=None)]
    rows += [row("adam", 0, lr=1e-3), row("adam", 0, lr=3e-3), row("infobatch", 0)]
    rows += [row("small-batches", 0, lr=1e-3), row("small-batches", 0, lr=3e-3)]  # whatever suits Adam
    assert best_lrs(rows) == {("digits-mlp", "adam"): 3e-3}
    kept = [("adam", 3e-3), ("infobatch", 1e-3), ("small-batches", 3e-3)]
    assert [(row["method"], row["lr"]) for row in reported(rows)] == kept


def test_the_report_shows_what_was_tuned_beside_adam_with_the_same_rate(tmp_path):
    tried = [row("adam", HELD_OUT, lr=lr, train_loss=loss) for lr, loss in ((1e-3, 0.4), (3e-3, 0.1))]
    tried.append(row("adamcb-smaller", HELD_OUT, lr=3e-3, train_loss=0.2, samples=25, test_accuracy=0.95))
    page, *_ = write_report(tmp_path / "tuning.csv", tried)
    assert "| digits-mlp | 0.003 | AdamCB, smaller batches | 0.25 | 2.00 | 95.00 % | yes |" in page.read_text()


def test_the_report_compares_seed_by_seed_and_leaves_out_what_diverged(tmp_path):
    rows = [row("adam", seed) for seed in range(3)]
    for seed in range(3):
        cheap = {"samples": 50, "seconds": 1.0, "train_loss": 0.2 * (1 + seed)}
        rows.append(row("adamcb-smaller", seed, test_accuracy=0.91, **cheap))
    rows.append(row("infobatch", 0, diverged="step 3", train_loss=None, test_loss=None, test_accuracy=None))
    page, *_ = write_report(tmp_path / "budget.csv", rows)
    text = page.read_text()
    assert "| 100 % | AdamCB, smaller batches | 3 | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] | 2.00 [2.00, 2.00] |" in text
    assert "+1.00 ± 0.00 | 91.00 % |" in text
    assert "InfoBatch" not in text


def test_a_row_survives_beside_a_file_that_others_wrote(tmp_path):
    table = RowFile(tmp_path / "rows.csv")
    table.append(row("adam", 0))
    RowFile(tmp_path / "rows.csv").append(row("adam", 1))
    found = RowFile(tmp_path / "rows.csv").rows
    assert [entry["seed"] for entry in found] == [0, 1]
    assert all(math.isfinite(entry["train_loss"]) for entry in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fraction", "1.5"], "`--fraction` must be in (0, 1], got 1.5"),
        (["--epochs", "0"], "`--epochs` must be at least 1, got --epochs=0"),
        (["--seed", "-1"], "`--seed` must be at least 0, got --seed=-1"),
        (["--jobs", "-1"], "`--jobs` must be at least 1, got -1"),
        (["--data-dir", "nowhere"], "`--data-dir` must be an existing folder, got 'nowhere'"),
    ],
)
def test_bad_options_are_named(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run_benchmarks(["budget"], [*options, "--task", "digits-mlp", "--rows", str(tmp_path / "rows.csv")])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "rows.csv").exists()
