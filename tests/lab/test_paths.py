"""Files and folders that options name: too long, of the wrong kind, of other contents, or gone in the middle."""

import shutil
from pathlib import Path

import pytest

from adamcb.lab.commands import compare, inspect, regret, reproduce, time_to_loss
from adamcb.lab.commands.cli import main
from adamcb.lab.errors import LabError
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import write_json
from tests.lab.commands import SMALL

TOO_LONG = {"name": "x" * 300, "name in a folder": f"nowhere/{'x' * 300}", "path": "y/" * 3000}
FOLDERS = (
    ("compare", "--out"),
    ("reproduce", "mlp", "--out"),
    ("reproduce", "mlp", "--rows"),
    ("regret", "--out"),
    ("bench", "time-to-loss", "--out"),
)
FILES = (("inspect", "run", "--csv"), ("inspect", "run", "--out"), ("bench", "budget", "--rows"))
DATA = (("compare",), ("reproduce", "mlp"), ("regret",), ("bench", "budget"), ("bench", "time-to-loss"))
READ = {
    **{(*command, "--data-dir"): "`--data-dir` must be an existing folder, got" for command in DATA},
    ("compare", "--config"): "`--config` must name a file that can be read, got",
    ("compare", "--dataset"): "`--dataset` must be one of digits, mnist, fashion-mnist, cifar10, or a folder, got",
    ("compare", "--log"): "argument --log: invalid choice",
    ("reproduce", "mlp", "--dataset"): "`--dataset` must be one of 'cifar10', got",
    ("reproduce",): "`FIGURE` must be one of 1, 2, mlp",
    ("inspect",): "`RUN` must be a result folder of adamcb, got",
}
REFERENCES = {
    ("compare", "--task"): "`--task` must name an existing file, got",
    ("compare", "--model"): "`--model` must name an existing file, got",
    ("compare", "--method"): "`method` must name an existing file, got",
    ("reproduce", "mlp", "--method"): "`method` must name an existing file, got",
    ("bench", "time-to-loss", "--method"): "`method` must name an existing file, got",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ended(command, capsys) -> tuple[int, str]:
    """Return the exit code of a command, and its last line of errors, which is all but how to use it."""
    try:
        code = main([str(word) for word in command])
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert printed.out == ""
    *usage, last = printed.err.splitlines()
    assert not usage or usage[0].startswith("usage: ")
    return code, last


@pytest.mark.parametrize("place", TOO_LONG.values(), ids=TOO_LONG)
@pytest.mark.parametrize("command", FOLDERS + FILES, ids=" ".join)
def test_a_place_with_too_long_a_name_is_refused_before_anything_runs(command, place, tmp_path, capsys):
    rule = "must be a path of at most 4095 bytes, and its names of at most 255"
    code, line = ended([*command, place], capsys)
    assert code == 2
    assert f"argument {command[-1]}: {rule}, got {len(place)} letters." in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", TOO_LONG.values(), ids=TOO_LONG)
@pytest.mark.parametrize(("command", "message"), [*READ.items(), *REFERENCES.items()], ids=" ".join)
def test_what_cannot_be_there_is_said_not_to_be_there(command, message, place, tmp_path, capsys):
    code, line = ended([*command, f"{place}.py:name" if command in REFERENCES else place], capsys)
    assert code in (1, 2)
    assert message in line
    assert list(tmp_path.iterdir()) == []


NO_PATHS = {"": "must name a place, got an empty path.", "\udcff": "must be a path of Unicode characters, got"}


@pytest.mark.parametrize("path", NO_PATHS, ids=["empty", "no UTF-8"])
@pytest.mark.parametrize("command", [(*command, "--data-dir") for command in DATA], ids=" ".join)
def test_a_data_folder_that_no_file_can_name_is_refused(command, path, tmp_path, capsys):
    if path:
        (tmp_path / path).mkdir()
    code, line = ended([*command, path], capsys)
    assert (code, f"argument --data-dir: {NO_PATHS[path]}" in line) == (2, True)


@pytest.mark.parametrize("command", [*REFERENCES, ("compare", "--dataset")], ids=" ".join)
def test_a_file_whose_name_is_no_unicode_is_refused(command, tmp_path, capsys):
    """run.toml is UTF-8, so it could not repeat the command."""
    (tmp_path / "\udcff.py").write_text("")
    code, line = ended([*command, "\udcff" if "--dataset" in command else "\udcff.py:mine"], capsys)
    assert (code, "must be a path of Unicode characters, got '\\udcff" in line) == (2, True)


@pytest.mark.parametrize("command", FOLDERS, ids=" ".join)
def test_a_file_is_no_folder_to_write_to(command, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    code, line = ended([*command, "file"], capsys)
    assert (code, f"argument {command[-1]}: must be a folder, got 'file', which is none." in line) == (2, True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", FILES, ids=" ".join)
def test_a_folder_is_no_file_to_write(command, tmp_path, capsys):
    code, line = ended([*command, tmp_path], capsys)
    assert (code, f"argument {command[-1]}: must be a file, got '{tmp_path}', which is a folder." in line) == (2, True)


@pytest.mark.parametrize("command", [("bench", "budget", "--rows"), ("reproduce", "mlp", "--rows")], ids=" ".join)
def test_rows_that_cannot_be_kept_are_an_error_before_the_first_run(command, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    code, line = ended([*command, "file/rows"], capsys)
    assert code == 1
    assert line.startswith("adamcb: error: Results cannot be written to file/rows (`--rows`): [Errno ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\nx,y\n", "rows.csv must be a table of adamcb: could not convert string to float: 'x'."),
        ("task,method\nx,y,z\n", "rows.csv must be a table of adamcb: float() argument must be"),
        ("task,method\nx,y\n", "rows.csv must have the columns seed, fraction, epochs, lr, got task, method."),
        ("\xff", "rows.csv must be a table of adamcb: 'utf-8' codec can't decode"),
    ],
)
def test_a_table_of_something_else_is_refused(content, message, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(content, encoding="latin-1")
    code, line = ended(["bench", "budget", "--report-only", "--rows", "rows.csv"], capsys)
    assert (code, message in line) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'out = "{"x" * 300}"', "`out` in run.toml must be a path of at most 4095 bytes"),
        ('out = ""', "`out` in run.toml must name a place, got an empty path."),
        ('log = "cvs"', "`--log` must be one of csv, tensorboard, wandb, mlflow, got 'cvs'. Did you mean 'csv'?"),
        ('out = "\\u0000"', r"`out` in run.toml must be a path without null characters, got '\x00'."),
        (f'data-dir = "{"x" * 300}"', "`--data-dir` must be an existing folder, got"),
        ('data-dir = ""', "`data-dir` in run.toml must name a place, got an empty path."),
        ('dataset = ""', "`--dataset` must name a place, got an empty path."),
        ('model = "a\\u0000.py:m"', r"`--model` must be a path without null characters, got 'a\x00.py'."),
        (f'task = "{"x" * 300}.py:task"', "`--task` must name an existing file, got"),
    ],
)
def test_places_in_a_file_of_options_are_checked_too(text, message, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(text)
    code, line = ended(["compare", "--config", "run.toml"], capsys)
    assert (code in (1, 2), message in line) == (True, True)


def vanishing(folder: Path):
    """Return a stand-in for anything, which removes a folder."""
    return lambda *_, **__: shutil.rmtree(folder) or []


def test_a_folder_that_vanishes_under_regret_is_named(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(regret, "measure", vanishing(out))
    few = ["--against", "T", "--method", "uniform", "--seeds", "1", "--steps", "16", "--samples", "100"]
    assert main(["regret", *few, "--out", str(out)]) == 1
    assert f"Results cannot be written to {out} (`--out`): [Errno 2]" in capsys.readouterr().err


def test_a_folder_that_vanishes_under_compare_is_named_with_its_option(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(compare, "config_text", lambda *_, **__: shutil.rmtree(out) or "text")
    assert main(["compare", *SMALL, "--out", str(out)]) == 1
    assert f"Results cannot be written to {out} (`--out`): [Errno 2]" in capsys.readouterr().err


def test_a_folder_that_vanishes_under_time_to_loss_is_named(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(time_to_loss, "_run", lambda *_: None)
    monkeypatch.setattr(time_to_loss, "gather", vanishing(out))
    assert main(["bench", "time-to-loss", "--task", "digits-mlp", "--out", str(out)]) == 1
    assert f"Results cannot be written to {out} (`--out`): [Errno 2]" in capsys.readouterr().err


def test_rows_that_vanish_under_reproduce_are_named(tmp_path):
    rows, place = tmp_path / "rows", tmp_path / "out"
    done = {"results": [{"step": 0}], "num_draws": 1, "num_chosen": 0, "diverged": None}
    write_json(_made(place / ".runs" / "adam-seed0") / "done.json", done)
    kept = reproduce._kept(rows, Experiment())
    rows.write_text("a file now")
    with pytest.raises(LabError, match=r"Results cannot be written to .*rows \(`--rows`\): \[Errno 17\]"):
        reproduce._take(kept, rows, place)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_run_that_vanishes_under_inspect_is_named(tmp_path, capsys, monkeypatch):
    run, read = tmp_path / "run", inspect.read_json
    write_json(_made(run) / "config.json", {"methods": ["adam"]})
    monkeypatch.setattr(inspect, "read_json", lambda path: shutil.rmtree(run) or read(path))
    assert main(["inspect", str(run)]) == 1
    assert f"`RUN` must be a folder that can be read, got {run}: [Errno 2]" in capsys.readouterr().err
