"""Do no harm: only the share of an epoch that the learned probabilities save is drawn by weight."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import CombinatorialBandit, Gate, SecondMoment

N, K = 600, 20
EPOCH = N // K


def bandit_of(seed: int = 0, **options) -> CombinatorialBandit:
    return CombinatorialBandit(N, K, generator=torch.Generator().manual_seed(seed), **options)


def seen_in_epochs(bandit: CombinatorialBandit, norms_of, epochs: int) -> list[int]:
    """Train on `norms_of(indices)`; return how many different samples each epoch saw."""
    counts = []
    for _ in range(epochs):
        seen: set[int] = set()
        for _ in range(EPOCH):
            draw = bandit.draw()
            seen |= set(draw.indices.tolist())
            bandit.update(draw, norms_of(draw.indices))
        counts.append(len(seen))
    return counts


def test_norms_that_are_all_alike_leave_reshuffled_epochs():
    assert seen_in_epochs(bandit_of(), lambda indices: np.full(K, 3.0), 8) == [N] * 8


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_norms_that_tell_nothing_of_the_next_visit_leave_reshuffled_epochs(sigma):
    rng = np.random.default_rng(0)
    assert seen_in_epochs(bandit_of(), lambda indices: rng.lognormal(sigma=sigma, size=K), 20) == [N] * 20


@pytest.mark.parametrize("seed", range(10))
def test_samples_that_were_never_visited_cannot_open_the_gate(seed):
    """In the first epoch weights fall and rise, but the samples drawn next still have the weights they began with."""
    difficulty = np.random.default_rng(seed).gamma(0.3, size=N)
    assert seen_in_epochs(bandit_of(seed), lambda indices: difficulty[indices], 1) == [N]


def test_lasting_differences_open_the_gate_in_the_second_epoch_and_their_end_closes_it():
    bandit, difficulty = bandit_of(), np.random.default_rng(0).gamma(0.3, size=N)
    first, *later = seen_in_epochs(bandit, lambda indices: difficulty[indices], 6)
    assert first == N
    assert max(later[1:]) < 0.8 * N
    rng = np.random.default_rng(1)
    *_, last = seen_in_epochs(bandit, lambda indices: rng.lognormal(size=K), 20)
    assert last == N


def test_without_a_gate_the_weights_decide_at_once():
    seen = seen_in_epochs(bandit_of(gate=None), lambda indices: np.full(K, 3.0), 1)
    assert seen[0] < 0.75 * N  # 1 − 1/e of independent draws


def test_a_closed_gate_promises_what_it_draws(generator):
    bandit = bandit_of()
    bandit.weights = np.linspace(0.1, 2.0, N)
    assert bandit.inclusion_probs() == approx(np.full(N, K / N))
    draw = bandit.draw()
    assert (draw.probs == K / N).all()
    assert draw.loss_weights == approx(np.full(K, 1 / K))


def test_the_gate_opens_where_the_second_moment_falls_by_the_smallest_gain():
    norms, equal = np.array([1.0, 2.0, 3.0]), np.full(3, 1 / 3)
    probs = norms / norms.sum()
    ratio = np.sum(norms**2 / probs) / np.sum(norms**2 / equal)  # 36/42
    for min_gain, expected in ((1 - ratio - 1e-9, True), (1 - ratio + 1e-9, False)):
        gate, moment = Gate(min_gain), SecondMoment()
        assert not gate.is_open(moment, 1.0)
        moment.note(norms, equal, probs)
        assert gate.is_open(moment, 1.0) is expected


def test_the_gate_opens_once_the_share_of_the_epoch_that_is_not_saved_is_done():
    norms, equal = np.array([1.0, 2.0, 3.0]), np.full(3, 1 / 3)
    gate, moment = Gate(0.1), SecondMoment()
    moment.note(norms, equal, norms / norms.sum())
    ratio = 36 / 42
    opened = [gate.is_open(moment, progress) for progress in (0.1, ratio - 1e-9, ratio + 1e-9, 1.0)]
    assert opened == [False, False, True, True]


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_an_epoch_begins_reshuffled_and_the_share_that_the_weights_save_is_drawn_by_them(spread):
    bandit, norms = bandit_of(), np.random.default_rng(0).lognormal(sigma=spread, size=N)
    seen_in_epochs(bandit, lambda indices: norms[indices], 40)
    chosen, reshuffled = 0, []
    assert np.ptp(bandit.inclusion_probs()) > 0.0  # the epoch that has ended had chosen batches
    for number in range(EPOCH):
        promised = bandit.inclusion_probs()
        draw = bandit.draw()
        assert number == 0 or draw.probs == approx(promised[draw.indices], rel=1e-12)
        if (draw.probs == K / N).all():
            assert chosen <= 2  # batches at the border: the ratio is estimated anew after each
            reshuffled += draw.indices.tolist()
        else:
            chosen += 1
        bandit.update(draw, norms[draw.indices])
    ratio = np.sum(norms**2 / promised) / np.sum(norms**2 * N / K)  # known here from all n norms
    assert chosen / EPOCH == approx(1.0 - ratio, abs=0.1)
    assert len(set(reshuffled)) == len(reshuffled) == (EPOCH - chosen) * K


def test_a_gain_outside_0_1_is_refused():
    with pytest.raises(ValueError, match=r"`min_gain` must be .*got min_gain=1.5"):
        Gate(1.5)
    with pytest.raises(
        ValueError, match=r"got min_gain=0.0. To draw every batch by weight, give the bandit gate=None."
    ):
        Gate(0.0)
