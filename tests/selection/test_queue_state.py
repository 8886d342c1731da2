"""QueueBandit: saved states, ranks and errors."""

import copy

import numpy as np
import pytest
import torch

from adamcb.selection import QueueBandit
from tests.selection.test_queue import bandit_of, train


def both(bandit: QueueBandit, other: QueueBandit, scores_of, draws: int) -> None:
    for _ in range(draws):
        a, b = bandit.draw(), other.draw()
        for name in ("indices", "probs", "loss_weights"):
            assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
        bandit.update(a, scores_of(a.indices))
        other.update(b, scores_of(b.indices))


def test_a_resumed_queue_continues_bit_for_bit_with_scores_under_way(tmp_path):
    n, k = 500, 16
    bandit, scores = bandit_of(n, k, min_batch_size=4), np.random.default_rng(0).gamma(0.4, size=n)
    train(bandit, lambda indices: scores[indices], 150)
    pending = [bandit.draw() for _ in range(3)]
    torch.save(bandit.state_dict(), tmp_path / "state.pt")
    other = bandit_of(n, k, min_batch_size=4, seed=5)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for draw in pending:
        bandit.update(draw, scores[draw.indices])
        other.update(draw, scores[draw.indices])
    both(bandit, other, lambda indices: scores[indices], 200)


def test_a_saved_state_does_not_change_with_the_bandit():
    bandit = bandit_of(50, 5)
    state = bandit.state_dict()
    kept = copy.deepcopy(state)
    train(bandit, lambda indices: np.linspace(0.1, 2.0, 5), 40)
    for name, value in kept.items():
        assert torch.equal(state[name], value) if isinstance(value, torch.Tensor) else state[name] == value


def test_ranks_with_one_seed_make_the_same_draws():
    scores = np.random.default_rng(0).gamma(0.4, size=200)
    first, second = (bandit_of(200, 8, seed=3, min_batch_size=4, size_multiple=4) for _ in range(2))
    both(first, second, lambda indices: scores[indices], 200)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rates": torch.zeros(20, dtype=torch.float64)}, r"`state\['rates'\]` must hold numbers above 0"),
        ({"events": torch.zeros(19)}, r"`state\['events'\]` must be a vector of length 20"),
        ({"sums": [0.0, 1.0]}, r"`state\['sums'\]` must be 4 numbers, got shape"),
        ({"sums": [0.0, 20.0, 20.0, float("nan")]}, r"`state\['sums'\]\[3\]` must be a finite number in \[-1, 1\]"),
        ({"sums": [0.0, 20.0, -20.0, 0.0]}, r"`state\['sums'\]` must hold finite numbers at or above 0"),
        ({"stream": [-1, 0]}, r"`state\['stream'\]\[0\]` must be at least 0"),
        ({"stream": [1]}, r"`state\['stream'\]` must be two integers"),
        ({"sizes": {}}, r"`state\['sizes'\]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(change, match):
    bandit, other = bandit_of(20, 4), bandit_of(20, 4)
    with pytest.raises((ValueError, TypeError), match=match):
        bandit.load_state_dict({**bandit_of(20, 4, seed=9).state_dict(), **change})
    both(bandit, other, lambda indices: np.linspace(0.1, 2.0, 4), 20)


def change_entry(name: str, change, *, visited: bool):
    """Return what changes one entry of a sample that was, or was not, visited in its unit."""

    def apply(state) -> None:
        i = int(torch.nonzero(state["visited"] == visited)[0])
        state[name][i] = change(state, i)

    return apply


def change_sum(place: int, factor: float):
    def apply(state) -> None:
        state["sums"][place] *= factor

    return apply


MISFITS = {
    "the sum of rates": (change_sum(1, 1e-300), r"`state\['sums'\]` must hold the sum of state\['rates'\]"),
    "the sum of weights": (change_sum(2, 1.1), r"`state\['sums'\]` must hold the sum of state\['weights'\]"),
    "a position before all units": (change_sum(0, 0.0), r"`state\['begins'\]` must lie at or before the position"),
    "a low rate": (
        change_entry("rates", lambda state, i: 0.1, visited=True),
        r"'rates'\]` must lie between the lowest",
    ),
    "a high rate": (change_entry("rates", lambda state, i: 51.0, visited=True), "'rates'.*and the highest rate"),
    "a unit to come": (
        change_entry("begins", lambda state, i: 1e9, visited=True),
        r"`state\['begins'\]` must lie at or before the position",
    ),
    "a place before its unit": (
        change_entry("events", lambda state, i: state["begins"][i] / 2, visited=False),
        r"`state\['events'\]` must lie within the unit of their sample",
    ),
    "a place after its unit": (change_entry("events", lambda state, i: 1e9, visited=False), "must lie within the unit"),
    "no end of a unit": (
        change_entry("events", lambda state, i: state["begins"][i] + 0.1, visited=True),
        "and at its end where the sample was visited",
    ),
}


@pytest.mark.parametrize(("change", "match"), MISFITS.values(), ids=MISFITS)
def test_a_state_whose_numbers_cannot_be_of_one_axis_is_refused_and_nothing_changes(change, match):
    scores = np.random.default_rng(0).gamma(0.4, size=400)
    saved, bandit, other = (bandit_of(400, 4, seed=seed) for seed in (9, 0, 0))
    train(saved, lambda indices: scores[indices], 250)
    state = copy.deepcopy(saved.state_dict())
    bandit_of(400, 4).load_state_dict(state)
    change(state)
    with pytest.raises(ValueError, match=match):
        bandit.load_state_dict(state)
    both(bandit, other, lambda indices: scores[indices], 20)


def test_the_sum_of_weights_stays_theirs_while_all_of_them_shrink():
    """Rounding errors are as large as the sum once was: after a millionfold fall they would show."""
    n, k = 2000, 32
    bandit, source = bandit_of(n, k), np.random.default_rng(0)
    scores = source.gamma(0.05, size=n) + 1e-9

    def noisy(indices):
        return scores[indices] * np.exp(2.0 * source.normal(size=len(indices))) * 10.0 ** source.integers(5)

    for _ in range(20):  # learning may rest on the way, and begin anew: where, depends on the last digits
        train(bandit, noisy, 500)
        total = bandit.weights.sum()
        if total < 1e-6 * n:
            break
    assert total < 1e-6 * n
    assert bandit._axis.sums[2] == pytest.approx(total, rel=1e-11)


def test_what_rounding_took_is_saved():
    bandit, other = bandit_of(20, 4), bandit_of(20, 4, seed=9)
    bandit._axis.sums[3] = -1e-16
    other.load_state_dict(bandit.state_dict())
    assert other._axis.sums.tolist() == bandit._axis.sums.tolist()


def test_a_state_of_other_settings_is_refused():
    with pytest.raises(ValueError, match="must be saved with exploration=0.2, got exploration=0.3"):
        bandit_of(20, 4).load_state_dict(bandit_of(20, 4, exploration=0.3).state_dict())


# --- errors


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"exploration": 0.0}, r"`exploration` must be .*got exploration=0.0"),
        ({"exploration": 1.5}, r"`exploration` must be .*got exploration=1.5"),
        ({"min_batch_size": 0}, "`min_batch_size` must be at least 1"),
        ({"min_batch_size": 9}, "`min_batch_size` must be at most 8"),
        ({"size_multiple": 0}, "`size_multiple` must be at least 1"),
        ({"size_multiple": 3}, "`batch_size` must be a multiple of size_multiple=3, got batch_size=8"),
        ({"feedback": "loud"}, "`feedback` must be one of"),
    ],
)
def test_bad_arguments_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        bandit_of(40, 8, **options)


def test_bad_scores_and_weights_change_nothing():
    bandit, other = bandit_of(40, 4), bandit_of(40, 4)
    draw = bandit.draw()
    other.draw()
    for scores in ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, np.nan], [1.0, -1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="`scores`"):
            bandit.update(draw, scores)
        with pytest.raises(ValueError, match="`scores`"):
            bandit.check(draw, scores)
    with pytest.raises(ValueError, match="`draw` must be a draw of this selection"):
        bandit.update(bandit_of(40, 4, seed=8).draw(), np.ones(4))
    with pytest.raises(ValueError, match="`weights` must hold at least one number above 0"):
        bandit.weights = np.zeros(40)
    both(bandit, other, lambda indices: np.linspace(0.1, 2.0, 4), 20)
