"""Noise-matched batches, whose sizes vary: frameworks, accumulation, workers and compiled models take them as well."""

import importlib.util
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from adamcb import AdaptiveLoader, QueueBandit
from adamcb.selection import Draw
from tests.integrations import problem
from tests.integrations.problem import BATCH_SIZE, EPOCHS, LR, SAMPLES, assert_same, outcome, own_loop, train_set
from tests.training.problem import mlp

NEEDS = {"lightning": ("lightning",), "accelerate": ("accelerate",), "transformers": ("transformers", "accelerate")}
DRAWN: set[int] = set()


class Varied(QueueBandit):
    """The default, as if the noise asked for another size at every draw. What it asks for follows from the state."""

    def draw(self) -> Draw:
        self.plan_size(1000.0 * self._axis.sums[0] % self.batch_size)
        draw = super().draw()
        DRAWN.add(len(draw))
        return draw


def smaller(num_samples: int = SAMPLES, batch_size: int = BATCH_SIZE) -> QueueBandit:
    generator = torch.Generator().manual_seed(0)
    return Varied(num_samples, batch_size, min_batch_size=batch_size // 8, generator=generator)


def runs_of(name: str, monkeypatch: pytest.MonkeyPatch):
    """Return the module with the framework's runs, which then choose by `smaller`."""
    if not all(importlib.util.find_spec(package) for package in NEEDS[name]):
        pytest.skip(f"{name} is not installed")
    runs = importlib.import_module(f"tests.integrations.{name}_runs")
    for module in (problem, runs):
        monkeypatch.setattr(module, "new_selection", smaller)
    return runs


@pytest.mark.parametrize("name", NEEDS)
def test_a_framework_trains_and_resumes_as_an_ordinary_loop_does(name, monkeypatch, tmp_path):
    runs = runs_of(name, monkeypatch)
    expected = (runs if name == "transformers" else problem).own_loop()
    DRAWN.clear()
    for result in runs.straight_and_resumed(str(tmp_path), *(({},) if name == "lightning" else ())):
        assert_same(result, expected)
    assert len(DRAWN) > 2


def train(**options):
    """Train by an ordinary loop; return what came of it, and the sizes of its batches."""
    model, sizes = mlp(dtype=torch.float64), []
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    call: Any = torch.compile(model, backend=options.pop("backend")) if "backend" in options else model
    with AdaptiveLoader(call, train_set(), BATCH_SIZE, selection=smaller(), **options) as loader:
        for x, y in itertools.chain.from_iterable(itertools.repeat(loader, EPOCHS)):
            sizes.append(len(x))
            optimizer.zero_grad()
            loader.weigh(F.cross_entropy(call(x), y, reduction="none")).backward()
            optimizer.step()
        return outcome(model, loader), sizes


def test_sizes_come_from_the_ladder_and_are_the_same_in_every_way_of_running():
    expected, sizes = train()
    assert len(set(sizes)) > 2
    assert set(sizes) <= set(smaller().sizes)
    compiled, sizes_compiled = train(backend="eager")
    assert_same(compiled, expected)
    assert sizes_compiled == sizes


def test_workers_draw_ahead_and_lose_no_sample():
    late, sizes = train(feedback_delay=2)
    by_workers, sizes_by_workers = train(num_workers=1, multiprocessing_context="fork", prefetch_factor=2)
    assert late["steps"] == by_workers["steps"] == EPOCHS * (SAMPLES // BATCH_SIZE)
    assert len(set(sizes)) > 2
    assert len(set(sizes_by_workers)) > 2


def test_accumulated_gradients_of_smaller_batches_are_divided_by_the_number_of_batches(monkeypatch):
    """Two batches a step, whatever their sizes: each is an estimate of the same mean."""
    runs = runs_of("accelerate", monkeypatch)
    assert_same(runs.Run(gradient_accumulation_steps=2).train(), own_loop(accumulate=2))
