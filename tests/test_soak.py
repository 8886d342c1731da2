"""The long runs of benchmarks/soak.py, made short."""

import pytest

from benchmarks.soak import SELECTIONS, Look, Soaked, main, soak_selection, soak_trainer


@pytest.mark.parametrize("name", SELECTIONS)
def test_probabilities_go_on_summing_to_the_batch_size_under_extreme_norms(name):
    found = Soaked.of(list(soak_selection(name, 1000, 300)))
    assert found.rounds == 300
    assert found.error <= 1e-12


def test_a_trainer_is_soaked_through_abandoned_epochs_and_checkpoints():
    looks = list(soak_trainer(1400, workers=0))  # four epochs of 512 steps, of which the third is left in its middle
    assert [looks[0].rounds, looks[-1].rounds, len(looks)] == [14, 1400, 100]
    assert all(look.memory > 0.0 for look in looks)


@pytest.mark.parametrize(
    ("error", "after", "sound"), [(1e-14, 100.0, True), (1e-8, 100.0, False), (float("nan"), 110.0, False)]
)
def test_what_drifts_or_grows_is_not_sound(error, after, sound):
    looks = [
        Look("one", rounds, error if rounds == 5 else 0.0 * error, after if rounds == 6 else 100.0)
        for rounds in range(1, 11)
    ]
    assert Soaked.of(looks) == pytest.approx((10, error, 100.0, after), nan_ok=True)
    assert Soaked.of(looks).is_sound == sound


def test_what_a_run_wrote_is_drawn(tmp_path, capsys):
    rows, figure = tmp_path / "soak.csv", tmp_path / "soak.svg"
    assert main(["--draws", "20", "--samples", "500", "--steps", "20", "--workers", "0", "--out", str(rows)]) in (0, 1)
    printed = capsys.readouterr().out
    main(["--draw", str(rows), "--out", str(figure)])
    assert capsys.readouterr().out == printed
    assert "</svg>" in figure.read_text(encoding="utf-8")
