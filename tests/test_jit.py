"""Compiling is told in words, once, and is no part of what the meter counts."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from numba.core import event
from torch import nn
from torch.utils.data import TensorDataset

import adamcb
from adamcb import _jit
from adamcb.lab.runs import workers

USE = "import numpy as np, adamcb; s = adamcb.UniformSelection(10, 2); s.update(s.draw(), np.ones(2))"


def errors_of(code, **environment):
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return run.stderr


@pytest.mark.slow
def test_a_fresh_machine_is_told_once_and_a_second_process_finds_the_code(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert errors_of(USE, **cache).count("Compiling the loops of adamcb for this machine: some seconds, once.") == 1
    assert list(tmp_path.rglob("*.nbc"))
    assert errors_of(USE, **cache) == ""


@pytest.mark.slow
def test_where_code_cannot_be_stored_everyone_is_told_what_to_do(tmp_path):
    """Also root cannot make a folder where a file is."""
    package = tmp_path / "adamcb"
    shutil.copytree(Path(adamcb.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {file.parent for file in package.rglob("*.py")}:
        (folder / "__pycache__").touch()
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(package / "__pycache__"))
    environment = {**nowhere, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    told = errors_of(USE, **environment)
    assert told.count("Compiling the loops of adamcb: some seconds in every process") == 1
    assert "Set the environment variable NUMBA_CACHE_DIR to a folder that can be written." in told
    stored = {**environment, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert errors_of(USE, **stored).count("once.") == 1
    assert errors_of(USE, **stored) == ""


def test_the_command_line_shows_it_without_being_asked(monkeypatch):
    shown, logger = [], logging.getLogger("adamcb._jit")
    handler = workers._tell_of_compiling(SimpleNamespace(send=shown.append))
    monkeypatch.setattr(_jit._teller, "told", False)
    loop = {"dispatcher": SimpleNamespace(py_func=_jit.clock)}
    try:
        for _ in range(2):
            event.start_event("numba:compile", loop)
    finally:
        logger.removeHandler(handler)
    assert shown == [workers.Note(_jit._ONCE)]


@pytest.fixture
def seconds(monkeypatch):
    """A clock that goes on when it is told to."""
    now = [100.0]
    monkeypatch.setattr("adamcb._jit.time.perf_counter", lambda: now[0])
    return now


def compile_for(seconds, duration):
    """Do what numba does while it compiles a loop that calls another."""
    with event.trigger_event("numba:compiler_lock"):
        seconds[0] += duration / 2
        with event.trigger_event("numba:compiler_lock"):
            seconds[0] += duration / 2


def test_the_clock_stands_still_while_numba_compiles(seconds):
    start = _jit.clock()
    seconds[0] += 1.0
    compile_for(seconds, 6.0)
    seconds[0] += 2.0
    assert _jit.clock() - start == pytest.approx(3.0)


def test_numba_tells_when_it_compiles():
    """Without the event, the clock would not stand still."""
    before = _jit._stopwatch.seconds
    assert _jit.jit(lambda x: x + 1)(1) == 2
    assert _jit._stopwatch.seconds > before


class Slow(adamcb.UniformSelection):
    """A selection whose draws and updates take a second, after six of compiling."""

    learns = True

    def __init__(self, seconds):
        super().__init__(8, 4, generator=torch.Generator().manual_seed(0))
        self.seconds = seconds

    def draw(self):
        compile_for(self.seconds, 6.0)
        self.seconds[0] += 1.0
        return super().draw()

    def update(self, draw, scores):
        compile_for(self.seconds, 6.0)
        self.seconds[0] += 1.0


def test_the_meter_does_not_count_compiling(seconds):
    model, selection = nn.Linear(3, 2), Slow(seconds)
    dataset = TensorDataset(torch.zeros(8, 3), torch.arange(8) % 2)
    loader = adamcb.AdaptiveLoader(model, dataset, 4, selection=selection, scores="losses")
    for x, y in loader:
        loader.weigh(nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
    assert loader.meter.seconds == pytest.approx({"selection": 4.0, "data": 0.0, "training": 0.0})
