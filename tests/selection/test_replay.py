"""The recipe for prioritized replay: probabilities, the ring of the buffer, and what it brings."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import approx

EXAMPLE = Path(__file__).parents[2] / "examples" / "replay.py"


@pytest.fixture(scope="module")
def replay():
    spec = importlib.util.spec_from_file_location("replay_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def new_buffer(replay, count: int = 6, capacity: int = 8, **options):
    numbers = [np.arange(count), np.arange(count) / 10.0]
    return replay.PrioritizedReplay(numbers, capacity, 3, generator=torch.Generator().manual_seed(0), **options)


def test_transitions_are_distinct_and_drawn_by_their_td_errors(replay):
    buffer = new_buffer(replay, alpha=1.0, beta=1.0, eps=0.0)
    draw, (first, second), weights = buffer.sample()
    assert len(set(first.tolist())) == 3
    assert second == approx(first / 10.0)
    assert weights == approx(1.0)
    buffer.learn(draw, np.array([-1.0, 2.0, 0.5]))
    expected = np.append(np.ones(6), [0.0, 0.0])
    expected[draw.indices] = [1.0, 2.0, 0.5]
    assert buffer.selection.inclusion_probs() == approx(3 * expected / expected.sum())
    draw, _, weights = buffer.sample()
    assert weights == approx(draw.probs.min() / draw.probs)


def test_new_transitions_have_the_highest_priority_and_replace_the_oldest(replay):
    buffer = new_buffer(replay, alpha=1.0, eps=0.0)
    draw, _, _ = buffer.sample()
    buffer.learn(draw, np.array([4.0, 0.1, 0.1]))
    for number in (100, 101, 102):
        buffer.add(number, 0.0)
    assert buffer.memory[0].tolist() == [102, 1, 2, 3, 4, 5, 100, 101]
    assert (buffer.selection.weights[[6, 7, 0]] == 4.0).all()
    assert (buffer.size, buffer.place) == (8, 1)


def test_priorities_learn_the_cliffwalk_from_fewer_batches(replay):
    def needed(alpha: float) -> int:
        return replay.batches_until_learned(8, 0, alpha, episodes=300, most=3000)

    prioritized, uniform = needed(0.6), needed(0.0)
    assert 20 < prioritized < 0.8 * uniform
    assert uniform < 3000
