"""`adamcb.lab.compare`: what is refused before the first run, and where a comparison is saved to."""

import errno
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import UniformSelection
from adamcb.lab import Comparison, LabError, Method, Task, compare
from adamcb.lab.commands import compare as commands_compare
from adamcb.lab.commands.compare import Options, prepare
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import write_json
from adamcb.training import generator_states, set_generator_states


def make() -> Task:
    generator = torch.Generator().manual_seed(0)
    train, test = (TensorDataset(torch.randn(n, 3, generator=generator), torch.arange(n) % 2) for n in (20, 8))
    return Task("mine", lambda: nn.Linear(3, 2), train, test, batch_size=4, epochs=1)


def no_adam(parameters, lr):
    return [torch.optim.Adam(parameters, lr=lr), None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selection": lambda *_, **__: None}, "`selection` of the method 'mine' must return an adamcb.Selection, got"),
        ({"optimizer": lambda *_, **__: None}, "`optimizer` of the method 'mine' must return a torch.optim.Optimizer,"),
        (
            {"optimizer": no_adam},
            "`optimizer` of the method 'mine' must return a torch.optim.Optimizer, or several, go",
        ),
        ({"optimizer": lambda *_, **__: []}, "The method 'mine' cannot be trained with these options: `optimizer` mus"),
        ({"optimizer": lambda: None}, "The method 'mine' cannot be trained with these options: .*unexpected keyword"),
        (
            {"exploration": 0.0},
            r"The method 'mine' cannot be trained with these options: `exploration` .* \(0, 1\], got",
        ),
    ],
)
def test_what_cannot_be_built_of_a_method_is_an_error_before_any_run(settings, message, tmp_path, monkeypatch):
    monkeypatch.setattr(commands_compare, "run_missing", lambda *_: pytest.fail("it ran"))
    with pytest.raises(LabError, match=message):
        compare(make(), methods=["adam", Method("mine", **settings)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trying_the_methods_draws_nothing_from_global_generators():
    def drawing(*sizes, generator):
        drawn()
        return UniformSelection(*sizes, generator=generator)

    def drawn() -> tuple[float, float, float]:
        return torch.rand(1).item(), np.random.rand(), random.random()

    device = torch.device("cpu")
    states = generator_states(device)
    expected = drawn()
    set_generator_states(device, states)
    prepare(Experiment(task="mine", methods=(Method("a", selection=drawing),)), Options(), Console(quiet=True), make())
    assert drawn() == expected


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Comparison:
    return compare(make(), methods=["adam"], seeds=1, out=tmp_path_factory.mktemp("compared") / "out")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "`out` must name a file, got out=''"),
        ("\0", r"`out` must name a file, got out='\\x00'"),
        ("\udcff", r"`out` must be a path of Unicode characters, got '\\udcff'"),
        (3, "`out` must be a path, got out=3"),
        (None, "`out` must be a path, got out=None"),
        ("x" * 300, r"Results cannot be written to x+ \(`out`\): .*File name too long"),
        ("file", "`out` must be a new or empty folder, or one of this comparison, got file"),
        ("file/below", r"Results cannot be written to file/below \(`out`\): "),
        ("mine", "`out` must be a new or empty folder, or one of this comparison, got mine"),
        ("other", "other holds results of another configuration: --epochs was 2 and is now 1"),
        (".", "`out` must be a new or empty folder"),
    ],
)
def test_a_place_to_save_to_is_refused_by_name(out, message, compared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    write_json(tmp_path / "other" / "config.json", {**compared.config, "epochs": 2})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LabError, match=message):
        compared.save(out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("inside", ["", "deeper", ".runs"])
def test_a_comparison_is_not_saved_into_its_own_folder(inside, compared):
    before = sorted(compared.folder.rglob("*"))
    with pytest.raises(LabError, match="`out` must be outside of the result folder"):
        compared.save(compared.folder / inside)
    assert sorted(compared.folder.rglob("*")) == before


def test_a_comparison_is_saved_to_an_empty_folder_and_again_to_the_same(compared, tmp_path):
    def files(folder: Path) -> dict[str, bytes]:
        found = (file for file in folder.rglob("*") if file.is_file() and file.name != "lock")
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}

    place = tmp_path / "kept"
    place.mkdir()
    for _ in range(2):
        assert compared.save(place) == place
        assert files(place) == files(compared.folder)
    (place / "results.csv").write_text("damaged")
    (place / "notes.txt").write_text("mine")
    compared.save(str(place))
    assert files(place) == {**files(compared.folder), "notes.txt": b"mine"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def test_a_disk_that_is_full_leaves_no_half_of_a_comparison(compared, tmp_path, monkeypatch):
    copied, copyfile = [], shutil.copyfile

    def stopping(source, target, **options):
        if len(copied) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        copied.append(target)
        return copyfile(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", stopping)
    with pytest.raises(LabError, match=r"Results cannot be written to .*kept \(`out`\): .*No space left"):
        compared.save(tmp_path / "kept")
    assert len(copied) == 3
    assert list(tmp_path.iterdir()) == []
