"""Time to loss: what is measured, on curves whose answer is known, and the bench as a whole."""

import csv
import math
import subprocess

import pytest

from adamcb.lab.commands.bench import run_benchmarks
from adamcb.lab.commands.cli import main
from adamcb.lab.commands.time_to_loss import DEFAULT_METHODS, TASKS, gather, measure
from adamcb.lab.output.markdown import cell
from adamcb.lab.output.time_to_loss import COLUMNS, estimates, firsts, write_report
from adamcb.lab.results import RUNS, read_json, write_json
from adamcb.lab.results.statistics import Estimate, combine, estimate, reach, value_at
from tests.lab.commands import runs_here


def curve(losses: list[float], pace: float = 1.0) -> list[dict]:
    """Return rows a step apart, whose test loss is twice the training loss."""
    return [
        {
            "step": 10 * number,
            "wall_seconds": 2.0 * pace * number,
            "seconds": pace * number,
            "train_loss": loss,
            "test_loss": 2.0 * loss,
            "test_accuracy": 1.0 - loss / 10.0,
        }
        for number, loss in enumerate(losses)
    ]


def test_a_loss_is_reached_between_evaluations_where_its_logarithm_says():
    rows = curve([8.0, 4.0, 1.0, 2.0, 0.5])
    assert reach(rows, "train_loss", 4.0, "step", "seconds") == pytest.approx((10.0, 1.0))
    assert reach(rows, "train_loss", 2.0, "step", "seconds") == pytest.approx((15.0, 1.5))
    assert reach(rows, "train_loss", 2.0, "step", "wall_seconds") == pytest.approx((15.0, 3.0))
    assert reach(rows, "test_loss", 2.0, "step", "seconds") == pytest.approx((20.0, 2.0))
    assert reach(rows, "train_loss", 0.5**1.5 * 2**0.5, "step", "seconds") == pytest.approx((40.0, 4.0))
    assert reach(rows, "train_loss", 9.0, "step", "seconds") == (10.0, 1.0)  # where it starts it has reached nothing
    assert reach(curve([1.0, 1e30]), "train_loss", 1e30, "step", "seconds") == (10.0, 1.0)
    assert reach(curve([1.0, 3.0]), "train_loss", 2.0, "step", "seconds") is None
    assert reach(rows, "train_loss", 0.4, "step", "seconds") is None
    assert reach(curve([2.0, 0.0]), "train_loss", 0.5, "step", "seconds") == pytest.approx((7.5, 0.75))


def test_a_measure_at_a_moment_lies_between_its_neighbors():
    rows = curve([8.0, 4.0, 1.0])
    assert value_at(rows, "train_loss", 1.5, "cpu") == pytest.approx(2.0)
    assert value_at(rows, "train_loss", 1.5, "wall") == pytest.approx(8.0 * 2**-0.75)
    assert value_at(rows, "test_accuracy", 1.5, "cpu") == pytest.approx(0.75)
    assert value_at(rows, "train_loss", 0.0, "cpu") == 8.0
    assert value_at(rows, "train_loss", 9.0, "cpu") == 1.0


def test_intervals_are_students():
    """Five numbers with mean 3 and standard deviation √2.5: t of 4 degrees of freedom is 2.776."""
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.margin == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert math.isnan(estimate([1.0]).margin)
    assert math.isnan(estimate([1.0, 2.0], at_least=True).margin)


def test_the_mean_over_tasks_adds_their_errors():
    tasks = [Estimate(1.0, 0.3, 4.0), Estimate(3.0, 0.3, 4.0)]
    both = combine(tasks)
    assert (both.mean, both.error, both.freedom) == pytest.approx((2.0, 0.3 / math.sqrt(2), 8.0))
    assert combine(tasks[:1]).error == pytest.approx(0.3)
    assert combine([*tasks, Estimate(0.0, 0.1, 4.0, at_least=True)]).at_least
    assert combine([Estimate(0.0, 0.0, 4.0)]).margin == 0.0


def test_a_run_is_measured_against_adam_with_its_seed():
    adam = curve([8.0, 4.0, 2.0])
    slow = measure(curve([8.0, 2.0, 1.0], pace=1.5), adam, "cpu")
    assert (slow["steps_to_train_loss"], slow["seconds_to_train_loss"]) == pytest.approx((10.0, 1.5))
    assert (slow["steps"], slow["seconds"], slow["own_seconds"]) == (20, 2.0, 3.0)
    assert slow["train_loss_at_equal_seconds"] == pytest.approx(2.0 ** (2 / 3))
    assert slow["test_loss_at_equal_seconds"] == pytest.approx(2.0 * 2.0 ** (2 / 3))
    assert (slow["train_loss"], slow["adam_train_loss"]) == (1.0, 2.0)
    overfit = measure(curve([8.0, 1.0, 3.0]), adam, "cpu")
    assert (overfit["best_test_loss"], overfit["adam_best_test_loss"]) == (2.0, 4.0)
    never = measure(curve([8.0, 7.0, 6.0]), adam, "cpu")
    assert never["seconds_to_train_loss"] is None
    found = estimates([never, never])
    assert found["seconds"].at_least
    assert cell(found["seconds"], COLUMNS["seconds"]) == "≥ 1.00"
    stopped = measure(curve([8.0, 1.0]), adam, "cpu")
    assert stopped["diverged"]
    assert estimates([stopped]) == {}
    marked = measure(curve([8.0, 1.0, 1.0]), adam, "cpu", diverged=True)
    assert marked["diverged"]
    assert marked["seconds_to_train_loss"] is None


def test_runs_that_say_that_they_diverged_are_gathered_as_such(tmp_path):
    finite = curve([2.0, 1.0])
    ends = {"adam-seed0": None, "mine-seed0": "step 10: …", "adam-seed1": "step 10: …", "mine-seed1": None}
    for run, diverged in ends.items():
        place = tmp_path / "constant" / "task" / RUNS / run
        place.mkdir(parents=True)
        write_json(place / "done.json", {"results": finite, "diverged": diverged})
    records = {(record["method"], record["seed"]): record["diverged"] for record in gather(tmp_path, "cpu")}
    assert records == {("adam", 0): False, ("mine", 0): True}  # no Adam to compare with for seed 1


def test_estimates_are_ratios_and_differences():
    adam = curve([8.0, 4.0, 2.0])
    found = estimates([measure(curve([8.0, 2.0, 1.0], pace), adam, "cpu") for pace in (0.5, 2.0)])
    assert math.exp(found["seconds"].mean) == pytest.approx(0.5)  # of 0.25 and 1
    assert math.exp(found["final"].mean) == pytest.approx(0.5)
    assert found["accuracy"].mean == pytest.approx(10.0)
    assert cell(found["accuracy"], COLUMNS["accuracy"]) == "+10.00 ± 0.00"
    assert cell(found["final"], COLUMNS["final"]) == "0.50 [0.50, 0.50]"


def test_the_first_are_those_that_cannot_be_told_from_the_best():
    def runs(times: list[float | None]) -> list[dict]:
        return [
            {
                "seed": seed,
                "diverged": False,
                "seconds": 1.0,
                "own_seconds": 2.0,
                "seconds_to_train_loss": time,
            }
            for seed, time in enumerate(times)
        ]

    by_method = {
        "best": runs([0.5, 0.52, 0.48]),
        "alike": runs([0.6, 0.45, 0.55]),
        "worse": runs([0.7, 0.71, 0.69]),
        "sometimes": runs([0.1, None, 0.1]),
        "once": runs([0.1]),
        "none": [],
    }
    assert firsts(by_method) == {"best", "alike"}
    assert firsts({"sometimes": by_method["sometimes"]}) == set()
    assert firsts({"once": by_method["once"], "slow": runs([0.2])}) == {"once"}


def test_runs_that_diverged_are_counted_apart(tmp_path):
    adam = curve([8.0, 4.0, 2.0])
    names = {"condition": "constant", "task": "digits-mlp"}
    ends = {("adam", 0): adam, ("adam", 1): adam, ("other", 0): adam, ("other", 1): curve([8.0, 9.0])}
    records = [{**names, "method": m, "seed": s, **measure(rows, adam, "cpu")} for (m, s), rows in ends.items()]
    write_report(tmp_path, records, {}, "cpu")
    page = (tmp_path / "time-to-loss.md").read_text()
    assert "| **adam** | 2 |" in page
    assert "other | 1 (1 diverged) |" in page


def test_the_tasks_are_those_agreed_on():
    assert len(TASKS) == 7
    assert {name: task["batch_size"] for name, task in TASKS.items() if "batch_size" in task} == {"digits-mlp": 32}
    assert DEFAULT_METHODS[0] == "adam"
    assert len(DEFAULT_METHODS) == 8


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The bench on digits, then again with a further method and seed."""
    out = tmp_path_factory.mktemp("bench")
    options = ["bench", "time-to-loss", "--task", "digits-mlp", "--epochs", "2", "--schedule", "constant"]
    options += ["--jobs", "1", "--out", str(out)]
    with runs_here():
        assert main([*options, "--method", "infobatch", "--seeds", "1"]) == 0
        before = {path: path.stat().st_mtime_ns for path in out.rglob("done.json")}
        assert main([*options, "--method", "last-loss", "--seeds", "2"]) == 0
    return out, before, options


def test_the_bench_goes_on_where_it_was(bench):
    out, before, _ = bench
    assert len(before) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    runs = {path.parent.name for path in (out / "constant" / "digits-mlp" / ".runs").glob("*/done.json")}
    assert runs == {"adam-seed0", "infobatch-seed0", "adam-seed1", "last-loss-seed0", "last-loss-seed1"}


def test_the_bench_tells_of_all_runs_that_are_there(bench):
    out, _, _ = bench
    page = (out / "time-to-loss.md").read_text()
    for words in ("## constant", "### digits-mlp", "InfoBatch", "last-seen loss", "processor time", "88 steps"):
        assert words in page
    with (out / "time-to-loss.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == 5
    assert all(float(record["seconds"]) > 0.0 for record in records)
    for suffix in ("png", "svg"):
        assert (out / f"time-to-loss-constant.{suffix}").stat().st_size > 5000
    svg = (out / "time-to-loss-constant.svg").read_text()
    assert "InfoBatch" in svg
    assert "digits-mlp" in svg


def test_the_bench_has_two_clocks_and_finer_curves_than_results(bench):
    out, _, _ = bench
    by_clock = {
        clock: {(r["method"], r["seed"]): r for r in gather(out, clock)}["adam", 1] for clock in ("cpu", "wall")
    }
    last = read_json(out / "constant" / "digits-mlp" / ".runs" / "adam-seed1" / "done.json")["results"][-1]
    assert by_clock["cpu"]["seconds"] == last["seconds"] != last["wall_seconds"] == by_clock["wall"]["seconds"]
    adam = by_clock["cpu"]
    assert adam["train_loss"] == adam["adam_train_loss"] == pytest.approx(adam["train_loss_at_equal_seconds"])
    assert adam["seconds_to_train_loss"] <= adam["seconds"]


def test_the_bench_refuses_to_mix_configurations(bench, capsys):
    _, _, options = bench
    assert main([*options, "--epochs", "3"]) == 1
    assert "--epochs was 2 and is now 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "nothing"], "`method` must be one of"),
        (["--jobs", "-1"], "`--jobs` must be at least 1, got -1"),
        (["--data-dir", "nowhere"], "`--data-dir` must be an existing folder, got 'nowhere'"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", "time-to-loss", *options, "--task", "digits-mlp", "--out", str(tmp_path / "none")])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_all_benchmarks_leave_out_the_one_that_takes_hours(monkeypatch, capsys):
    ran = []

    def run(command: list[str], **_) -> subprocess.CompletedProcess:
        ran.append(command[3:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert run_benchmarks(["selection", "time-to-loss"], ["--help"]) == 0
    assert ran == [["benchmarks.selection", "--help"]]
    assert "time-to-loss takes hours; ask for it by name" in capsys.readouterr().err
