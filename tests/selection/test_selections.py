"""What all selections share: the protocol, late feedback, state, randomness, and errors that change nothing."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import (
    CombinatorialBandit,
    Draw,
    Gate,
    ListingFeedback,
    ProofFeedback,
    ReplacementBandit,
    ScaleFree,
    Selection,
    UniformSelection,
    WeightedSelection,
)
from tests.reference.selection import SlowCombinatorialBandit, SlowReplacementBandit

MAKERS = {
    "proof": lambda *a, **o: CombinatorialBandit(*a, feedback="proof", gate=None, **o),
    "listing": lambda *a, **o: CombinatorialBandit(*a, feedback="listing", gate=None, **o),
    "scale-free": CombinatorialBandit,
    "adambs-corrected": ReplacementBandit,
    "adambs-original": lambda *a, **o: ReplacementBandit(*a, form="original", **o),
    "uniform": UniformSelection,
    "weighted": lambda n, k, **o: WeightedSelection(np.linspace(0.5, 2.0, n), k, **o),
}
BANDITS = [name for name in MAKERS if name not in ("uniform", "weighted")]


def make(name, n=100, k=7, seed=0):
    return MAKERS[name](n, k, generator=torch.Generator().manual_seed(seed))


def bounded(name, max_norm, **options):
    """The selection with a known bound on the norms; scale-free feedback has none."""
    if name.startswith("adambs"):
        return MAKERS[name](100, 7, max_norm=max_norm, **options)
    feedback = {"proof": ProofFeedback(max_norm), "listing": ListingFeedback(max_norm), "scale-free": ScaleFree()}[name]
    return CombinatorialBandit(100, 7, feedback=feedback, gate=Gate(0.1) if name == "scale-free" else None, **options)


def twin(name, max_norm):
    """The slow twin of `bounded`."""
    if name.startswith("adambs"):
        return SlowReplacementBandit(100, 7, 0.4, name.removeprefix("adambs-"), max_norm)
    return SlowCombinatorialBandit(100, 7, 0.4, name, max_norm)


def log_weights(slow):
    logs = np.log(slow.w) if isinstance(slow, SlowReplacementBandit) else slow.log_w
    return logs - logs.max()


def run(selection, steps, seed=0):
    """Draw and feed back; return what was drawn and with what probability."""
    rng = np.random.default_rng(seed)
    trace = []
    for _ in range(steps):
        draw = selection.draw()
        selection.update(draw, rng.gamma(0.5, size=len(draw)))
        trace.append((draw.indices.tolist(), draw.probs.tolist()))
    return trace


def same(first, second):
    """Equal in every tensor and value of their state."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize("name", MAKERS)
def test_every_selection_keeps_the_protocol(name):
    selection = make(name)
    assert isinstance(selection, Selection)
    draw = selection.draw()
    assert draw.indices.dtype == np.int64
    assert draw.probs.dtype == draw.loss_weights.dtype == np.float64
    assert draw.loss_weights == approx(1 / (100 * draw.probs))
    assert (draw.probs == selection.inclusion_probs()[draw.indices]).all()
    assert selection.inclusion_probs().sum() == approx(7)


@pytest.mark.parametrize("name", MAKERS)
def test_a_draw_cannot_be_changed_and_survives_pickling(name):
    draw = make(name).draw()
    with pytest.raises(ValueError, match="read-only"):
        draw.probs[0] = 1.0
    with pytest.raises(AttributeError):
        draw.probs = None
    selection, twin = make(name), pickle.loads(pickle.dumps(draw))
    selection.draw()
    selection.update(twin, np.ones(7))


def test_an_epoch_of_uniform_selection_sees_every_sample_once(generator):
    selection = UniformSelection(103, 10, generator=generator)
    epochs = [np.concatenate([selection.draw().indices for _ in range(10)]) for _ in range(3)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 100
    assert not (epochs[0] == epochs[1]).all()


@pytest.mark.parametrize("name", ["proof", "listing", "scale-free", "weighted"])
def test_the_order_is_reshuffled_every_epoch(name):
    bandit = make(name, n=30, k=7)
    seeds = []
    for _ in range(12):
        bandit.draw()
        seeds.append(bandit._order_seed)
    assert [seeds.count(seed) for seed in dict.fromkeys(seeds)] == [4, 4, 4]


@pytest.mark.parametrize("name", ["proof", "scale-free"])
@pytest.mark.parametrize("part", ["permutation", "inverse"])
def test_an_interrupt_between_two_epochs_loses_nothing_that_was_learned(name, part, monkeypatch):
    bandit = make(name)
    run(bandit, 14)  # an epoch
    weights, probs = bandit.weights, bandit.inclusion_probs()

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"adamcb.selection._tree_selection.{part}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bandit.draw()
    assert (bandit.weights == weights).all()
    assert bandit.inclusion_probs() == approx(probs, rel=1e-12)
    restored = make(name)
    restored.load_state_dict(bandit.state_dict())
    assert bandit.draw().indices.tolist() == restored.draw().indices.tolist()


@pytest.mark.parametrize("name", BANDITS)
def test_feedback_may_come_late_and_out_of_order(name):
    """Each change is the twin's in the same order; with a known bound, any order gives the same weights."""
    bandit = bounded(name, 10.0, generator=torch.Generator().manual_seed(0))
    draws = [bandit.draw() for _ in range(40)]  # nearly three epochs ahead of the feedback
    norms = np.random.default_rng(0).gamma(0.5, size=(40, 7))
    late = copy.deepcopy(bandit)
    for draw, values in zip(draws, norms, strict=True):
        bandit.update(draw, values)
    slow = twin(name, 10.0)
    for i in np.random.default_rng(1).permutation(40):
        late.update(draws[i], norms[i])
        slow.update(draws[i].indices, draws[i].probs / (7 if name.startswith("adambs") else 1), norms[i])
    assert np.log(late.weights / late.weights.max()) == approx(log_weights(slow), abs=1e-9)
    if name in ("proof", "listing", "adambs-corrected"):
        assert late.weights == approx(bandit.weights, rel=1e-12)


@pytest.mark.parametrize("name", BANDITS)
def test_late_feedback_changes_only_the_samples_it_is_about(name):
    bandit = make(name)
    draw = bandit.draw()
    for _ in range(30):  # two epochs later, in another order
        bandit.draw()
    bandit.update(draw, np.linspace(0.5, 2.0, 7))
    changed = np.flatnonzero(bandit.weights != 1.0)
    assert set(changed) <= set(draw.indices)
    assert len(changed) >= 5


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_saved_in_the_middle_of_an_epoch_continues_bit_for_bit(name, tmp_path):
    selection = make(name)
    run(selection, 33)
    waiting = selection.draw()
    torch.save(selection.state_dict(), tmp_path / "state.pt")
    restored = make(name, seed=99)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (selection, restored):
        one.update(waiting, np.linspace(0.0, 1.0, 7))
    assert run(selection, 50, seed=1) == run(restored, 50, seed=1)
    assert same(selection.state_dict(), restored.state_dict())


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_state_does_not_change_with_the_selection(name):
    selection = make(name)
    run(selection, 5)
    state = selection.state_dict()
    kept = copy.deepcopy(state)
    run(selection, 20)
    assert same(state, kept)


@pytest.mark.parametrize("name", MAKERS)
def test_randomness_comes_from_the_own_generator_alone(name):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)
    first = run(make(name, seed=5), 40)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert repr(numpy_state) == repr(np.random.get_state(legacy=False))
    torch.manual_seed(123)
    assert run(make(name, seed=5), 40) == first
    assert run(make(name, seed=6), 40) != first


@pytest.mark.parametrize("name", MAKERS)
def test_without_a_generator_the_global_seed_decides(name):
    torch.manual_seed(3)
    first = run(MAKERS[name](100, 7), 5)
    torch.manual_seed(3)
    assert run(MAKERS[name](100, 7), 5) == first


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "weighted"])
@pytest.mark.parametrize(
    ("n", "k", "error", "message"),
    [
        (10, 11, ValueError, r"`batch_size` must be at most num_samples=10, got batch_size=11"),
        (10, 0, ValueError, r"`batch_size` must be at least 1, got batch_size=0"),
        (0, 1, ValueError, r"`num_samples` must be at least 1, got num_samples=0"),
        (10, 2.0, TypeError, r"`batch_size` must be an integer, got batch_size=2.0 of type float"),
        (10, True, TypeError, r"`batch_size` must be an integer, got batch_size=True of type bool"),
        (10.0, 2, TypeError, r"`num_samples` must be an integer"),
    ],
)
def test_bad_sizes_are_named(name, n, k, error, message):
    with pytest.raises(error, match=message):
        MAKERS[name](n, k)


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.parametrize("exploration", [-0.1, 1.1, float("nan"), float("inf")])
def test_exploration_outside_0_1_is_refused(name, exploration):
    with pytest.raises(ValueError, match=r"`exploration` must be a finite number in \[0, 1\], got exploration="):
        MAKERS[name](10, 2, exploration=exploration)


def test_unknown_words_are_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="`feedback` must be one of 'scale-free', 'proof', 'listing', got feedback='exp3'"
    ):
        CombinatorialBandit(10, 2, feedback="exp3")
    with pytest.raises(ValueError, match="`form` must be one of 'corrected', 'original', got form='new'"):
        ReplacementBandit(10, 2, form="new")


@pytest.mark.parametrize("max_norm", [0.0, float("nan"), -1.0])
@pytest.mark.parametrize("rule", [ProofFeedback, ListingFeedback, partial(ReplacementBandit, 10, 2)])
def test_a_bound_that_is_none_is_refused(rule, max_norm):
    with pytest.raises(ValueError, match=r"`max_norm` must be a finite number in \(0, inf\), got max_norm="):
        rule(max_norm=max_norm)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([1.0] * 6, r"`scores` must be a vector of length 7, got scores of shape \(6,\)"),
        ([[1.0] * 7], r"`scores` must be a vector of length 7, got scores of shape \(1, 7\)"),
        ([1.0] * 6 + [float("nan")], r"`scores` must hold finite numbers at or above 0, got scores\[6\]=nan"),
        ([1.0] * 3 + [float("inf")] + [1.0] * 3, r"got scores\[3\]=inf \(1 such of 7\)"),
        ([-1.0] * 7, r"got scores\[0\]=-1.0 \(7 such of 7\)"),
    ],
)
def test_bad_norms_are_named_and_change_nothing(name, norms, message):
    selection = make(name)
    run(selection, 3)
    draw = selection.draw()
    before = selection.state_dict()
    with pytest.raises(ValueError, match=message):
        selection.update(draw, norms)
    assert same(before, selection.state_dict())


@pytest.mark.parametrize("name", [name for name in BANDITS if name != "scale-free"])
def test_a_norm_above_the_given_bound_is_an_error_and_changes_nothing(name):
    bandit = bounded(name, 2.0)
    draw = bandit.draw()
    bandit.update(draw, np.full(7, 2.0))
    before = bandit.state_dict()
    with pytest.raises(ValueError, match=r"`scores` must be at most max_norm=2, got scores\[1\]=2.5"):
        bandit.update(draw, [1, 2.5, 1, 1, 1, 1, 1])
    assert same(before, bandit.state_dict())


def test_a_norm_that_cannot_be_squared_is_refused():
    bandit = CombinatorialBandit(10, 2)
    with pytest.raises(ValueError, match=r"`scores` must be at most 1e\+140, got scores\[0\]=1e\+200"):
        bandit.update(bandit.draw(), [1e200, 1.0])


@pytest.mark.parametrize("name", MAKERS)
def test_a_draw_of_another_selection_is_refused(name):
    selection, other = make(name, seed=0), make(name, seed=1)
    before = selection.state_dict()
    with pytest.raises(ValueError, match="`draw` must be a draw of this selection, got one of another"):
        selection.update(other.draw(), np.ones(7))
    with pytest.raises(TypeError, match="`draw` must be a Draw, got draw of type list"):
        selection.update([1, 2, 3], np.ones(7))
    assert same(before, selection.state_dict())


@pytest.mark.parametrize("name", MAKERS)
def test_state_of_another_size_or_kind_is_refused_and_changes_nothing(name):
    selection = make(name)
    run(selection, 3)
    before = selection.state_dict()
    broken = {**before, "generator": torch.zeros(3, dtype=torch.uint8)}
    cases = [
        (make(name, n=101).state_dict(), "`state` must be saved with num_samples=100, got num_samples=101"),
        (make(name, k=8).state_dict(), "`state` must be saved with batch_size=7, got batch_size=8"),
        (make("uniform" if name != "uniform" else "proof").state_dict(), "must be saved with kind"),
        ({}, "`state` must be a dict with the keys settings, origin, generator"),
        (None, "got NoneType"),
        (broken, r"`state\['generator'\]` must be the state of a torch.Generator"),
        ({**before, "settings": None}, "`state` must be saved with kind="),
    ]
    if "drawn" in before:
        cases.append(({**before, "drawn": 15}, r"`state\['drawn'\]` must be at most 14, got state\['drawn'\]=15"))
    if name in BANDITS:
        cases.append(
            ({**before, "weights": torch.full((100,), float("nan"))}, r"`state\['weights'\]` must hold finite")
        )
        cases.append(
            ({**before, "weights": torch.zeros(100)}, r"`state\['weights'\]` must hold at least 1 number above 0")
        )
        cases.append(({**before, "feedback": {}}, r"`state\['feedback'\]\['\w+'\]` must be a number"))
        cases.append(({**before, "feedback": None}, r"`state\['feedback'\]\['\w+'\]` must be a number"))
        cases.append(
            (MAKERS[name](100, 7, exploration=0.5).state_dict(), "saved with exploration=0.4, got exploration=0.5")
        )
    for state, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            selection.load_state_dict(state)
        assert same(before, selection.state_dict())


@pytest.mark.parametrize("name", BANDITS)
def test_weights_can_be_given_and_bad_ones_change_nothing(name):
    bandit = make(name, n=5, k=2)
    bandit.weights = np.array([1, 2, 3, 4, 0])
    assert np.array_equal(bandit.weights, [1, 2, 3, 4, 0])
    for weights, message in [
        ([1, 2, 3], r"`weights` must be a vector of length 5"),
        ([1, 2, 3, 4, -1], r"got weights\[4\]=-1.0"),
        ([0, 0, 0, 0, 0], "`weights` must hold at least 1 number above 0, got 0 of 5"),
    ]:
        with pytest.raises(ValueError, match=message):
            bandit.weights = weights
    assert np.array_equal(bandit.weights, [1, 2, 3, 4, 0])


def test_without_exploration_there_must_be_enough_weights_to_draw_from():
    bandit = CombinatorialBandit(5, 3, exploration=0.0)
    with pytest.raises(ValueError, match="`weights` must hold at least 3 numbers above 0, got 2 of 5"):
        bandit.weights = [1, 2, 0, 0, 0]


def test_a_generator_must_be_one():
    with pytest.raises(TypeError, match="`generator` must be a torch.Generator on the CPU, got generator=0"):
        UniformSelection(5, 2, generator=0)  # pyright: ignore[reportArgumentType]


def test_norms_may_be_a_tensor_as_well():
    bandit = CombinatorialBandit(10, 2)
    bandit.update(bandit.draw(), torch.tensor([1.0, 2.0]))


def test_a_draw_says_what_it_is():
    draw = UniformSelection(4, 2, generator=torch.Generator().manual_seed(0)).draw()
    assert isinstance(draw, Draw)
    assert repr(draw).startswith("Draw(indices=array([")
