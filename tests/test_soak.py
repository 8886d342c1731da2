"""The long runs of benchmarks/soak.py, made short."""

import pytest

from benchmarks.soak import SELECTIONS, Soaked, soak_selection, soak_trainer


@pytest.mark.parametrize("name", SELECTIONS)
def test_probabilities_go_on_summing_to_the_batch_size_under_extreme_norms(name):
    found = soak_selection(SELECTIONS[name], 1000, 300)
    assert found.rounds == 300
    assert found.error <= 1e-9


def test_a_trainer_is_soaked_through_abandoned_epochs_and_checkpoints():
    found = soak_trainer(260, workers=0)  # four epochs, of which the third is left in its middle
    assert found.rounds == 260
    assert found.after > 0.0


@pytest.mark.parametrize(
    ("error", "after", "sound"), [(1e-14, 100.0, True), (1e-8, 100.0, False), (float("nan"), 110.0, False)]
)
def test_what_drifts_or_grows_is_not_sound(error, after, sound):
    assert Soaked(10, error, 100.0, after).is_sound == sound
