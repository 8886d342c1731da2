"""Draws with replacement by weights that a subclass stores."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import ReplacementSelection


class LastScore(ReplacementSelection):
    def update(self, draw, scores):
        self.set_weights(draw.indices, self.check(draw, scores))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_weights_set_one_by_one_equal_weights_set_together():
    selection, twin = (LastScore(50, 8, exploration=0.2, generator=seeded()) for _ in range(2))
    rng, weights = np.random.default_rng(0), np.ones(50)
    for _ in range(40):
        draw, scores = selection.draw(), rng.gamma(0.5, size=8)
        assert twin.draw().indices.tolist() == draw.indices.tolist()
        selection.update(draw, scores)
        weights[draw.indices] = scores
        twin.weights = weights
        assert (selection.weights == weights).all()
        assert (selection.inclusion_probs() == twin.inclusion_probs()).all()


def test_probabilities_are_mixed_with_uniform_ones():
    selection = ReplacementSelection(4, 2, exploration=0.2)
    selection.weights = [1.0, 3.0, 0.0, 0.0]
    assert selection.inclusion_probs() == approx(2 * (0.8 * np.array([0.25, 0.75, 0.0, 0.0]) + 0.05))
    assert selection.min_prob == approx(0.05)


def test_of_repeated_samples_the_last_value_counts():
    selection = ReplacementSelection(4, 2)
    selection.set_weights(np.array([1, 1, 2]), [5.0, 6.0, 7.0])
    assert selection.weights.tolist() == [1.0, 6.0, 7.0, 1.0]


def test_without_any_weight_the_draw_is_uniform():
    selection = ReplacementSelection(4, 2, exploration=0.0, generator=seeded())
    selection.weights = np.zeros(4)
    assert selection.inclusion_probs() == approx(np.full(4, 0.5))
    assert selection.draw().loss_weights == approx([0.5, 0.5])


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_weights_set_later_are_on_the_scale_of_those_assigned(scale):
    selection = ReplacementSelection(4, 2, exploration=0.0, generator=seeded())
    selection.weights = np.array([1.0, 2.0, 3.0, 4.0]) * scale
    selection.set_weights(np.array([0]), [10.0 * scale])
    assert selection.inclusion_probs() == approx(2 * np.array([10.0, 2.0, 3.0, 4.0]) / 19.0)
    twin = ReplacementSelection(4, 2, exploration=0.0, generator=seeded(1))
    twin.load_state_dict(selection.state_dict())
    for one in (selection, twin):
        one.set_weights(np.array([1]), [20.0 * scale])
        assert one.inclusion_probs() == approx(2 * np.array([10.0, 20.0, 3.0, 4.0]) / 37.0)


def test_bad_weights_change_nothing():
    selection = ReplacementSelection(4, 2)
    for weights, message in [
        ([1.0], "`weights` must be a vector of length 2"),
        ([1.0, -1.0], r"got weights\[1\]=-1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            selection.set_weights(np.array([0, 1]), weights)
    assert (selection.weights == 1.0).all()
