"""`adamcb compare` end to end, and what it says when something is wrong."""

import contextlib
import importlib.util
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adamcb._files import DRAFT
from adamcb.lab.commands import compare
from adamcb.lab.commands.cli import BENCHMARKS, main
from adamcb.lab.runs import Run
from tests.lab.commands import CLOCKS, SMALL, read_rows, run, runs_here

DIGITS = ("--dataset", "digits")
BAD_OPTIONS = {
    "unknown dataset": (["--dataset", "mnits"], "`--dataset` must be one of digits, mnist, fashion-mnist, cifar10"),
    "near dataset": (["--dataset", "mnits"], "got 'mnits'. Did you mean 'mnist'?"),
    "unknown model": (["--model", "mpl"], "`--model` must be one of logistic, mlp"),
    "near model": (["--model", "mpl"], "got 'mpl'. Did you mean 'mlp'?"),
    "unknown method": (["--method", "adma"], "`method` must be one of 'adam'"),
    "near method": (["--method", "adamcd"], "got method='adamcd'. Did you mean 'adamcb'?"),
    "model file": (["--model", "nowhere.py:net"], "`--model` must name an existing file, got --model='nowhere.py:net'"),
    "task file": (["--task", "nowhere.py:task"], "`--task` must name an existing file"),
    "unknown log": (["--log", "paper"], "invalid choice: 'paper'"),
    "method twice": (["--method", "adam", "--method", "adam"], "Every method must be given once, got 'adam' again"),
    "no epochs": (["--epochs", "0"], "`epochs` must be at least 1, got epochs=0"),
    "no seeds": (["--seeds", "-1"], "`seeds` must be at least 1"),
    "no batch": (["--batch-size", "0"], "`batch_size` must be at least 1"),
    "seeds": (["--seeds", "1" + "0" * 18], "`seeds` must be at most 1000000, got seeds=1000000000000000000"),
    "epochs": (["--epochs", "1" + "0" * 400], "`epochs` must be at most 1000000000000000, got epochs of 1329 bits"),
    "lr is NaN": (["--lr", "nan"], "`lr` must be a finite number"),
    "exploration": (["--exploration", "1.5"], "`exploration` must be a finite number in [0, 1]"),
    "fraction": (["--fraction", "0"], "`fraction` must be a finite number in (0, 1]"),
    "schedule": (["--schedule", "linear"], "invalid choice: 'linear'"),
    "no jobs": (["--jobs", "0"], "`--jobs` must be at least 1"),
    "no steps": (["--steps", "0"], "`max_steps` must be at least 1"),
    "data folder": (["--data-dir", "/nowhere"], "`--data-dir` must be an existing folder"),
    "method file": (["--method", "nowhere.py:mine"], "must name an existing file"),
}
REFUSED = {
    "batch of everything": (
        [*DIGITS, "--batch-size", "1438"],
        "`--batch-size` must be below the 1438 training samples",
    ),
    "device": (["--device", "cuda:77"], "`--device` must be one that torch can use here, got 'cuda:77'"),
    "batches that cannot shrink": (
        [*DIGITS, "--method", "adam", "--method", "adamcb", "--batch-size", "32", "--min-batch-size", "33"],
        "The method 'adamcb' cannot be trained with these options: `min_batch_size` must be at most 32, got",
    ),
    "no exploration": (
        [*DIGITS, "--method", "adam", "--method", "adamcb", "--exploration", "0"],
        "The method 'adamcb' cannot be trained with these options: `exploration` must be a finite number in (0, 1]",
    ),
    "images too small": (["--model", "convnext-base"], "`image_shape` must be at least 32×32 for ConvNeXt"),
    "not a folder": (["--out", "/dev/null/results"], "Results cannot be written to /dev/null/results"),
}


@pytest.fixture(scope="module", params=["here", pytest.param("in processes", marks=pytest.mark.slow)])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished comparison: its folder, and what was printed."""
    out = tmp_path_factory.mktemp("small") / "out"
    if request.param == "here":
        with runs_here(), contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["compare", *SMALL, "--out", str(out)]) == 0
        return out, printed.getvalue()
    finished = run("compare", *SMALL, "--out", out)
    assert finished.returncode == 0, finished.stderr
    return out, finished.stdout


def test_compare_writes_every_file_of_the_result_folder(small):
    out, printed = small
    rows = read_rows(out / "results.csv")
    assert list(rows[0]) == [
        "method", "seed", "epoch", "step", "seconds", "train_loss", "test_loss", "train_accuracy", "test_accuracy",
        "wall_seconds", "diverged",
    ]  # fmt: skip
    runs = [(row["method"], row["seed"], row["epoch"], row["step"]) for row in rows]
    methods = ("adam", "adamcb")
    assert runs == [(m, str(s), str(e), str(11 * e)) for m in methods for s in range(2) for e in range(4)]
    assert len(read_rows(out / "selection.csv")) == len(rows)
    assert [row["method"] for row in read_rows(out / "summary.csv")] == list(methods)
    for name in ("epochs", "seconds"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "AdamCB" in (out / f"{name}.svg").read_text()
    assert "| Adam |" in (out / "summary.md").read_text()
    assert "AdamCB" in printed
    words = json.loads((out / "config.json").read_text())["verdict"]
    assert words.startswith("AdamCB ")
    assert printed.endswith(f"report: {out / 'report.html'}\n{words}\n")
    assert "AdamCB" in (out / "report.html").read_text()
    leftovers = [path for path in out.rglob("*") if path.name.startswith(DRAFT) or path.suffix == ".pt"]
    assert leftovers == []


def test_methods_of_a_seed_start_alike_and_seeds_differ(small):
    rows = [row for row in read_rows(small[0] / "results.csv") if row["epoch"] == "0"]
    losses = {(row["method"], row["seed"]): row["train_loss"] for row in rows}
    assert losses["adam", "0"] == losses["adamcb", "0"]
    assert losses["adam", "1"] == losses["adamcb", "1"]
    assert losses["adam", "0"] != losses["adam", "1"]
    assert {row[name] for row in rows for name in CLOCKS} == {"0.0"}
    last = [row for row in read_rows(small[0] / "results.csv") if row["epoch"] == "3"]
    assert all(float(row[name]) > 0.0 for row in last for name in CLOCKS)


def test_training_learns_and_the_bandit_leaves_uniform(small):
    rows = read_rows(small[0] / "results.csv")
    assert all(float(row["test_accuracy"]) > 0.9 for row in rows if row["epoch"] == "3")
    for row in read_rows(small[0] / "selection.csv"):
        if row["method"] == "adam":
            assert (row["second_moment"], row["prob_min"], row["prob_max"]) == ("", "1.0", "1.0")
        elif row["epoch"] == "3":
            assert float(row["prob_min"]) < 0.95 < 1.05 < float(row["prob_max"])
            assert 0.0 < float(row["second_moment"]) < 1.0
            assert 0.3 < float(row["coverage"]) < 1.0


def test_suspicious_samples_come_with_their_pictures(small):
    tables = sorted(path.name for path in (small[0] / "samples").iterdir())
    assert tables == ["adam-seed0.npz", "adam-seed1.npz", "adamcb-seed0.npz", "adamcb-seed1.npz"]
    files = sorted(path.name for path in (small[0] / "chosen").iterdir())
    assert files == ["adamcb-seed0.npz", "adamcb-seed1.npz"]
    with np.load(small[0] / "chosen" / files[0]) as chosen:
        assert chosen["image"].shape == (200, 8, 8)
        assert chosen["image"].dtype == np.uint8
        assert (np.diff(chosen["loss"]) <= 0).all()
        assert chosen["count"].max() > 3, "a uniform draw would take every sample three times at most"
        assert len(np.unique(chosen["index"])) == 200
    with np.load(small[0] / "samples" / files[0]) as table:
        assert len(table["index"]) == 1438


def test_the_same_command_again_trains_nothing_and_json_is_all_that_it_prints(small, capfd):
    before = (small[0] / "results.csv").read_bytes()
    assert main(["compare", *SMALL, "--out", str(small[0]), "--json"]) == 0
    assert (small[0] / "results.csv").read_bytes() == before
    printed = capfd.readouterr()
    assert printed.err == ""
    content = json.loads(printed.out)
    assert content["baseline"] == "adam"
    assert [record["method"] for record in content["summary"]] == ["adam", "adamcb"]
    assert content["config"]["epochs"] == 3
    assert Path(content["files"]["results"]).is_file()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--epochs", "4"], "--epochs was 3 and is now 4"),
        (["--seeds", "3"], "--seeds was 2 and is now 3"),
        (["--method", "adamx"], "--method was adam, adamcb and is now adam, adamcb, adamx"),
        (["--lr", "0.01"], "--lr was 0.001 and is now 0.01"),
        (["--steps", "5"], "--steps was None and is now 5"),
    ],
)
def test_results_of_another_configuration_are_refused(small, changed, named, capsys):
    before = {path: path.read_bytes() for path in small[0].glob("[!.]*.*")}
    assert main(["compare", *SMALL, "--out", str(small[0]), *changed]) == 1
    assert named in capsys.readouterr().err
    assert {path: path.read_bytes() for path in small[0].glob("[!.]*.*")} == before


def test_a_folder_with_a_stranger_s_results_is_refused(tmp_path, capsys):
    (tmp_path / "results.csv").write_text("mine")
    assert main(["compare", *SMALL, "--out", str(tmp_path)]) == 1
    assert "holds results.csv, but is no result folder" in capsys.readouterr().err
    assert (tmp_path / "results.csv").read_text() == "mine"


@pytest.mark.parametrize("content", ["[]", "[1, 2]", "3", '"methods"', "null", "{", ""])
def test_a_config_that_is_no_object_is_said_to_be_damaged(content, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    for command in (["compare", *SMALL, "--out", str(tmp_path)], ["inspect", str(tmp_path)]):
        assert main(command) == 1
        assert f"adamcb: error: {tmp_path / 'config.json'} is damaged" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == content


@pytest.mark.parametrize("when", ["while a run trains", "after the runs"])
def test_a_folder_that_vanishes_is_named(when, tmp_path, capfd, here, monkeypatch):
    out = tmp_path / "out"
    if when == "while a run trains":
        monkeypatch.setattr(Run, "_train_and_evaluate", lambda self: shutil.rmtree(out))
    else:
        monkeypatch.setattr(compare, "run_missing", lambda *_: shutil.rmtree(out))
    assert main(["compare", *SMALL, "--out", str(out)]) == 1
    printed = capfd.readouterr().err
    assert str(out) in printed.splitlines()[-1]
    assert "Traceback" not in printed


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_named(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["compare", *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_only_shows_with_the_data_is_an_error_of_one_sentence(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *options]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("adamcb: error: ")
    assert message in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_task_or_a_dataset_rare_events_are_trained_on(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "adamcb.lab.commands.compare.run_comparison", lambda experiment, *_: seen.append(experiment) or 1 / 0
    )
    for options in ([], ["--epochs", "1"], ["--dataset", "digits"], ["--fraction", "0.5"], ["--task", "protein"]):
        with pytest.raises(ZeroDivisionError):
            main(["compare", *options])
    assert [experiment.task for experiment in seen] == ["rare-events", "rare-events", None, None, "protein"]
    assert seen[0].methods == ("adam", "small-batches", "adamcb", "adamcb-smaller")


def test_missing_data_says_which_files_go_where(tmp_path, monkeypatch, capfd):
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    env = {"ADAMCB_DATA": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache"), **offline}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["compare", "--dataset", "mnist", "--out", str(tmp_path / "out")]) == 1
    printed = capfd.readouterr()
    assert "train-images-idx3-ubyte" in printed.err
    assert str(tmp_path / "empty") in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="to root every folder is writable")
def test_an_unwritable_folder_is_named(tmp_path, capsys):
    tmp_path.chmod(0o555)
    assert main(["compare", *SMALL, "--out", str(tmp_path / "out")]) == 1
    assert f"Results cannot be written to {tmp_path / 'out'}" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_half_written_and_the_same_command_goes_on(small, tmp_path, capfd, here):
    """No file may grow beyond 200 kB: the first checkpoint fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        assert main(["compare", *SMALL, "--out", str(tmp_path), "--checkpoint-seconds", "0"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    printed = capfd.readouterr().err
    assert "adam with seed 0: " in printed
    assert "checkpoint.pt could not be written" in printed
    assert "Traceback" not in printed
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files <= {"config.json", "lock", "progress.json", "run.toml"}
    assert main(["compare", *SMALL, "--out", str(tmp_path)]) == 0
    for name in ("results.csv", "selection.csv"):
        assert read_rows(tmp_path / name, without=CLOCKS) == read_rows(small[0] / name, without=CLOCKS)


def test_without_the_extra_the_message_names_it(tmp_path):
    script = (
        "import sys; sys.modules['rich'] = None; from adamcb.lab.commands.cli import main; sys.exit(main(['compare']))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert finished.returncode == 1
    assert finished.stderr == (
        "adamcb: the command line needs rich, not installed here: pip install '.[lab]' in a clone\n"
    )


def test_log_that_is_not_installed_is_named_before_anything_is_written(tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    assert main(["compare", "--method", "adam", "--log", "wandb", "--out", str(tmp_path / "out")]) == 1
    assert "pip install '.[wandb]' in a clone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "must name a place, got an empty path."), ("\udcff", "must be a path of Unicode characters, got '\\udcff'.")],
)
@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--out"],
        ["regret", "--out"],
        ["reproduce", "--rows"],
        ["inspect", "run", "--csv"],
        ["bench", "budget", "--rows"],
        ["bench", "time-to-loss", "--out"],
    ],
)
def test_a_place_that_cannot_be_written_to_is_named(command, path, message, capsys):
    """An empty path would be the current folder."""
    with pytest.raises(SystemExit) as ended:
        main([*command, path])
    assert ended.value.code == 2
    assert f"argument {command[-1]}: {message}" in capsys.readouterr().err


def test_bench_alone_lists_what_there_is(capsys):
    assert main(["bench"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [*BENCHMARKS, "all"]
