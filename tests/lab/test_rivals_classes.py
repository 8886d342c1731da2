"""What people do about rare classes, and RAD: what they draw, how often, and with which weights."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx
from torch import nn
from torch.utils.data import TensorDataset

from adamcb.lab import LabError, Task, compare
from adamcb.lab.methods import get_method
from adamcb.lab.methods.rivals import ClassBalanced, ResidualDistribution, Undersampling, WeightedLoss, focal
from adamcb.lab.runs.building import labels_of

N, K = 40, 6
LABELS = np.array([1] * 4 + [0] * 36)
LOSSES = np.arange(1.0, N + 1.0) ** 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.statistical
def test_the_balanced_sampler_draws_every_class_as_often_and_every_sample_of_it_as_often():
    selection = ClassBalanced(N, K, labels=LABELS, generator=generator())
    rounds, counts = 3000, np.zeros(N)
    for _ in range(rounds):
        draw = selection.draw()
        np.add.at(counts, draw.indices, 1)
        assert (draw.loss_weights == 1.0 / K).all()
    expected = selection.inclusion_probs()
    assert expected.sum() == approx(K)
    assert expected[:4].sum() == approx(K / 2)
    assert (np.abs(counts / rounds - expected) <= 5 * np.sqrt(expected / rounds)).all()


def test_undersampling_takes_the_rare_class_whole_and_as_many_of_the_other():
    selection = Undersampling(N, 4, labels=LABELS, generator=generator())
    seen = set()
    for _ in range(80):
        epoch = np.concatenate([selection.draw().indices for _ in range(2)])
        assert sorted(epoch[epoch < 4]) == [0, 1, 2, 3]
        assert len(set(epoch)) == 8
        seen |= set(epoch.tolist())
    assert len(seen) == N  # others of the common class each time
    assert len(Undersampling(N, 20, labels=LABELS, generator=generator()).draw()) == 8  # there are no more


def test_class_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    weights = compute_class_weight("balanced", classes=np.array([0, 1]), y=LABELS)
    draw = WeightedLoss(N, N, labels=LABELS, generator=generator()).draw()
    assert sorted(draw.indices) == list(range(N))
    assert draw.loss_weights == approx(weights[LABELS[draw.indices]] / N)


def test_focal_loss_is_the_published_one():
    logits = torch.linspace(-4.0, 4.0, 9, dtype=torch.float64)
    losses = F.binary_cross_entropy_with_logits(logits, torch.ones(9, dtype=torch.float64), reduction="none")
    p = logits.sigmoid()
    torch.testing.assert_close(focal(losses), -((1.0 - p) ** 2) * p.log())


@pytest.mark.statistical
def test_rad_draws_by_residuals_which_it_measures_now_and_then():
    asked = []

    def losses(indices: np.ndarray) -> np.ndarray:
        asked.append(len(indices))
        return LOSSES[indices]

    selection = ResidualDistribution(N, K, losses=losses, period=1000, generator=generator())
    rounds, counts = 2500, np.zeros(N)
    for _ in range(rounds):
        np.add.at(counts, selection.draw().indices, 1)
    assert asked == [N] * 3
    residuals = np.sqrt(LOSSES)
    density = residuals / residuals.mean() + 1.0
    expected = K * density / density.sum()
    assert selection.inclusion_probs() == approx(expected)
    assert (np.abs(counts / rounds - expected) <= 5 * np.sqrt(expected / rounds)).all()


@pytest.mark.statistical
def test_small_batches_are_a_quarter_and_uniform():
    build: Any = get_method("small-batches").selection
    selection = build(N, 8, generator=generator())
    draws = [selection.draw() for _ in range(60)]
    assert {len(draw) for draw in draws} == {2}
    assert all((draw.loss_weights == 0.5).all() for draw in draws)
    counts = np.bincount(np.concatenate([draw.indices for draw in draws]), minlength=N)
    assert counts.tolist() == [3] * N  # shuffled epochs
    assert selection.draws_per_epoch == N // 8


def make(targets: torch.Tensor) -> Task:
    x = torch.randn(N, 3, generator=generator(1))
    rows = TensorDataset(x, targets)
    return Task("classes", lambda: nn.Linear(3, 2), rows, rows, batch_size=8, epochs=1)


def test_labels_come_from_the_last_part_of_a_sample():
    assert labels_of(make(torch.from_numpy(LABELS))).tolist() == LABELS.tolist()
    with pytest.raises(LabError, match="must have samples that end with a class"):
        labels_of(make(torch.linspace(0.0, 1.0, N)))


def test_all_of_them_train_and_a_control_is_not_said_to_have_no_effect():
    methods = ("adam", "small-batches", "balanced-sampler", "weighted-loss", "focal-loss", "undersampling", "rad")
    comparison = compare(make(torch.from_numpy(LABELS)), methods=methods, seeds=1)
    assert [record["method"] for record in comparison.summary] == list(methods)
    samples = {row["method"]: row["samples"] for row in comparison.results}
    assert samples["adam"] == 40
    assert samples["small-batches"] == 10
    assert "chose 0" not in comparison.verdict
    losses = [record["final_train_loss"] for record in comparison.summary]
    assert len(set(losses)) == len(losses)  # no two of them do the same
