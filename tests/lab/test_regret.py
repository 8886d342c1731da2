"""`adamcb regret`: its files and tables, that it resumes, and what it says when something is wrong."""

import csv
import itertools
import json
import shutil

import numpy as np
import pytest
from pytest import approx

from adamcb.lab.commands.cli import main
from adamcb.lab.commands.regret import Design, plan
from adamcb.lab.commands.regret_runs import COLUMNS, METHODS, Settings
from adamcb.lab.output.regret import grid
from adamcb.lab.results import append_csv, read_csv
from adamcb.theory import exploration, growth_exponent

TINY = ("--samples", "120", "--steps", "32", "--halvings", "2", "--seeds", "2", "--batch-size", "8",
        "--batch-sizes", "4,16,500", "--method", "uniform", "--method", "adamcb-paper", "--penalty", "0.1")  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("regret") / "out"
    assert main(["regret", *TINY, "--out", str(out)]) == 0
    return out


def test_every_point_of_every_sweep_is_measured(tiny):
    rows = read_csv(tiny / "regret.csv")
    assert tuple(rows[0]) == COLUMNS
    points = {(row["sweep"], row["steps"], row["batch_size"], row["num_samples"]) for row in rows}
    assert points == {
        *(("T", steps, 8, 120) for steps in (8, 16, 32)),
        *(("K", 16, size, 120) for size in (4, 16)),  # 500 is not below n
        *(("n", 16, 8, count) for count in (30, 60, 120)),
    }
    assert len(rows) == 2 * 2 * len(points)
    for row in rows:
        assert row["cumulative"] == approx(row["online"] + row["gap_batches"] + row["gap_minimizers"])
        assert row["online"] < row["lemma1"] <= row["bound"] < row["bound_known"] < row["bound_printed"]
        known = exploration(row["num_samples"], row["batch_size"], row["steps"])
        assert row["exploration"] == (1.0 if row["method"] == "uniform" else known)


def test_the_summary_has_the_exponents_and_the_figures_are_there(tiny):
    rows, text = read_csv(tiny / "regret.csv"), (tiny / "summary.md").read_text()
    points, values = grid(rows, "T", "adamcb-paper", "cumulative")
    assert points.tolist() == [8, 16, 32]
    assert values.shape == (2, 3)
    assert f"| AdamCB (paper) | {growth_exponent(points, values)} |" in text
    for sweep in "TKn":
        assert f"## Against {sweep}" in text
        assert (tiny / f"regret-digits-{sweep}.png").read_bytes().startswith(b"\x89PNG")
        assert "AdamCB (paper)" in (tiny / f"regret-digits-{sweep}.svg").read_text()


def test_a_stopped_command_goes_on_and_ends_with_the_same_numbers(tiny, tmp_path):
    shutil.copy(tiny / "config.json", tmp_path)
    with (tiny / "regret.csv").open(newline="") as first:
        rows = csv.DictReader(first)
        for row in itertools.islice(rows, 11):
            append_csv(tmp_path / "regret.csv", COLUMNS, row)
    assert main(["regret", *TINY, "--out", str(tmp_path)]) == 0
    with (tmp_path / "regret.csv").open(newline="") as again, (tiny / "regret.csv").open(newline="") as first:
        assert list(csv.DictReader(again)) == list(csv.DictReader(first))


def test_a_folder_of_other_options_is_refused(tiny, capsys):
    assert main(["regret", *TINY, "--lr", "0.5", "--out", str(tiny)]) == 1
    assert "holds results of other options (settings); give another --out" in capsys.readouterr().err
    assert json.loads((tiny / "config.json").read_text())["settings"]["lr"] == 0.03


def design(**changes) -> Design:
    settings = Settings(None, 0.03, 0.99, 1e-3, 1)
    given = {"dataset": "digits", "against": ("T",), "methods": tuple(METHODS), "seeds": 1, "steps": 4000}
    given |= {"halvings": 3, "batch_size": 32, "batch_sizes": (8,), "samples": 0, "settings": settings}
    return Design(**{**given, **changes})


def test_methods_that_do_not_know_the_horizon_run_once():
    runs = list(plan(design(), 1438))
    horizons = {name: [run.horizons for run in runs if run.method == name] for name in METHODS}
    assert horizons["uniform"] == horizons["adambs"] == [(500, 1000, 2000, 4000)]
    assert horizons["adamcb-paper"] == [(500,), (1000,), (2000,), (4000,)]
    fixed = design(settings=Settings(0.4, 0.03, 0.99, 1e-3, 1), methods=("adamcb-paper",))
    assert [(run.horizons, run.exploration) for run in plan(fixed, 1438)] == [((500, 1000, 2000, 4000), 0.4)]


def test_methods_build_what_they_say(generator):
    for name, method in METHODS.items():
        bound = 9.0 if method.knows_norm else None
        selection = method.build(50, 5, exploration=0.5, max_norm=bound, generator=generator)
        draw = selection.draw()
        for _ in range(20):
            selection.update(draw, np.linspace(0.5, 8.0, 5))
            draw = selection.draw()
        uniform = np.allclose(selection.inclusion_probs(), 0.1)
        assert uniform == (name == "reshuffled"), name


BAD = {
    "method": (["--method", "adam"], "`method` must be one of 'uniform'"),
    "steps": (["--steps", "8"], "`steps` must be at least 16"),
    "exploration": (
        ["--exploration", "2"],
        "`exploration` must be a finite number in [1e-100, 1], got exploration=2.0",
    ),
    "not a number": (["--exploration", "much"], "argument --exploration: must be a number or lemma, got 'much'."),
    "tiny γ": (
        ["--exploration", "1e-320", "--method", "adambs"],
        "`exploration` must be a finite number in [1e-100, 1]",
    ),
    "sizes": (
        ["--batch-sizes", "8,x"],
        "argument --batch-sizes: must be whole numbers with commas between them, got '8,x'",
    ),
    "no size": (["--batch-sizes", "1,,2"], "argument --batch-sizes: must be whole numbers with commas between them"),
    "size": (["--batch-sizes", "0"], "`batch_sizes` must be at least 1, got batch_sizes=0"),
    "seeds": (["--seeds", "1" + "0" * 18], "`seeds` must be at most 1000000, got"),
    "halvings": (["--halvings", "1" + "0" * 18], "`halvings` must be at most 40, got"),
    "many steps": (["--steps", "1" + "0" * 400], "`steps` must be at most 1000000000, got steps of 1329 bits"),
    "every": (["--every", "1" + "0" * 23], "`every` must be at most 1000000000000000, got"),
    "lr": (["--lr", "1e308"], "`lr` must be a finite number in [1e-100, 1e+100], got lr=1e+308"),
    "penalty": (["--penalty", "1e308"], "`penalty` must be a finite number in [1e-100, 1e+100], got penalty=1e+308"),
    "λ": (["--beta1-decay", "1"], "`beta1_decay` must be a finite number in (0, 1)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_end_with_a_message(case, capsys):
    options, message = BAD[case]
    with pytest.raises(SystemExit) as stopped:
        main(["regret", *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_batch_that_the_smallest_dataset_cannot_fill_is_refused(tmp_path, capsys):
    assert main(["regret", "--samples", "100", "--batch-size", "12", "--out", str(tmp_path / "x")]) == 1
    assert "`--batch-size` must be below the smallest n, 12, got 12" in capsys.readouterr().err


def test_numbers_that_leave_the_bounds_end_with_the_run_s_name(tmp_path, capsys):
    few = ("--samples", "60", "--steps", "8", "--halvings", "1", "--seeds", "1", "--batch-size", "4", "--against", "T")
    options = (*few, "--method", "uniform", "--lr", "1e100", "--out", str(tmp_path / "out"))
    assert main(["regret", *options]) == 1
    printed = capsys.readouterr().err
    assert "adamcb: error: uniform, T sweep, seed 0: `diameter` must be a finite number in [0, 1e+100]" in printed
    assert "Traceback" not in printed
