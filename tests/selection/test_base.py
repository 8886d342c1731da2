"""What every selection has, and how to write one: defaults, draws of any size, state, one readable line."""

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
    ReplacementSelection,
    ScaleFree,
    SecondMoment,
    Selection,
    ShuffledEpochs,
    Stratum,
    UniformSelection,
    WeightedSelection,
    stratum_size,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Halving(Selection):
    """Batches that become smaller, from K to `min_batch_size`; a selection as a user would write it."""

    def __init__(self, num_samples, batch_size, *, min_batch_size, generator=None):
        super().__init__(num_samples, batch_size, min_batch_size=min_batch_size, generator=generator)
        self.size, self.seen = self.batch_size, 0.0

    def draw(self) -> Draw:
        indices = torch.randperm(self.num_samples, generator=self.generator)[: self.size].numpy()
        draw = self.make_draw(indices, self.size / self.num_samples)
        self.size = max(self.size // 2, self.min_batch_size)
        return draw

    def update(self, draw, scores):
        self.seen += float(self.check(draw, scores).sum())

    def learned(self):
        return {"size": self.size, "seen": self.seen}

    def restore(self, state):
        self.size, self.seen = state["size"], state["seen"]


class Bare(Selection):
    def draw(self) -> Draw:
        return self.make_draw([3, 1], [0.5, 0.25])


def test_a_selection_needs_no_more_than_a_draw():
    selection = Bare(10, 2, generator=seeded())
    assert (selection.num_samples, selection.batch_size, selection.min_batch_size) == (10, 2, 2)
    assert selection.draws_per_epoch == 5
    assert selection.learns
    draw = selection.draw()
    assert draw.indices.tolist() == [3, 1]
    assert draw.loss_weights == approx([1 / 5, 1 / 2.5])
    assert selection.check(draw, [1, 2]).tolist() == [1.0, 2.0]
    selection.update(draw, [1.0, 2.0])
    twin = Bare(10, 2, generator=seeded(1))
    twin.load_state_dict(selection.state_dict())
    twin.update(draw, [1.0, 2.0])  # the draw is its own now
    with pytest.raises(NotImplementedError, match="Bare does not implement `inclusion_probs`"):
        selection.inclusion_probs()
    with pytest.raises(NotImplementedError, match="Selection must implement `draw`"):
        Selection(10, 2).draw()


def test_batches_may_be_smaller_than_batch_size():
    selection = Halving(20, 8, min_batch_size=3, generator=seeded())
    assert selection.min_batch_size == 3
    draws = [selection.draw() for _ in range(4)]
    assert [len(draw) for draw in draws] == [8, 4, 3, 3]
    assert draws[1].loss_weights == approx(np.full(4, 1 / 4))
    selection.update(draws[1], np.ones(4))
    assert selection.seen == 4.0
    with pytest.raises(ValueError, match=r"`scores` must be a vector of length 4, got scores of shape \(8,\)"):
        selection.update(draws[1], np.ones(8))
    saved = selection.state_dict()
    assert saved["settings"]["min_batch_size"] == 3
    twin = Halving(20, 8, min_batch_size=3, generator=seeded(1))
    twin.load_state_dict(saved)
    assert twin.draw().indices.tolist() == selection.draw().indices.tolist()
    with pytest.raises(ValueError, match="must be saved with min_batch_size=2, got min_batch_size=3"):
        Halving(20, 8, min_batch_size=2).load_state_dict(saved)
    with pytest.raises(ValueError, match="must be saved with min_batch_size=None, got min_batch_size=3"):
        Halving(20, 8, min_batch_size=8).load_state_dict(saved)


@pytest.mark.parametrize("feedback", ["scale-free", "proof", "listing"])
def test_a_bandit_learns_from_a_part_of_a_draw(feedback):
    """A smaller draw changes the weights of its own samples and no others."""
    bandit = CombinatorialBandit(40, 8, feedback=feedback, generator=seeded())
    whole = bandit.draw()
    part = Draw(whole.indices[:3], whole.probs[:3], whole.loss_weights[:3], whole.origin)
    bandit.update(part, [1.0, 0.5, 0.2])
    assert set(np.flatnonzero(bandit.weights != 1.0)) == set(part.indices)
    with pytest.raises(ValueError, match="`scores` must be a vector of length 3"):
        bandit.update(part, np.ones(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3], 0.1), r"`len\(indices\)` must be at most 2, got len\(indices\)=3"),
        (([1], 0.1), r"`len\(indices\)` must be at least 2"),
        (([1, 10], 0.1), r"`indices` must hold integers in \[0, 10\), got indices\[1\]=10"),
        (([1, 1], 0.1), r"`indices` must be distinct, got 1 that repeat another"),
        (([1, 2], [0.1, 1.1]), r"`probs` must lie in \(0, 1\], got probs\[1\]=1.1"),
        (([-1, 2], 0.1), r"got indices\[0\]=-1"),
        (([1, 2], [0.1, 0.0]), r"`probs` must lie in \(0, 1\], got probs\[1\]=0.0"),
        (([1, 2], [0.1]), r"`probs` must be a vector of length 2, got probs of shape \(1,\)"),
        (([1, 2], 0.1, [1.0, float("nan")]), r"got loss_weights\[1\]=nan"),
    ],
)
def test_a_draw_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bare(10, 2).make_draw(*arguments)


def test_indices_must_be_integers():
    with pytest.raises(TypeError, match="`indices` must hold integers, got indices of dtype float64"):
        Bare(10, 2).make_draw([1.0, 2.0], 0.1)


def test_a_selection_that_repeats_samples_says_so():
    class Repeating(Bare):
        repeats = True

    state = Repeating(10, 2).make_draw([1, 1], 1.5).state_dict()
    assert Draw.from_state(state).indices.tolist() == [1, 1]
    with pytest.raises(ValueError, match="must be distinct"):
        Draw.from_state(state, repeats=False)
    with pytest.raises(ValueError, match=r"`state\['probs'\]` must lie in \(0, 1\], got state\['probs'\]\[0\]=1.5"):
        Draw.from_state({**state, "indices": torch.tensor([1, 2])}, repeats=False)
    with pytest.raises(TypeError, match=r"`state\['indices'\]` must hold integers"):
        Draw.from_state({**state, "indices": torch.tensor([1.0, 2.5])})


@pytest.mark.parametrize(
    ("kind", "sizes"), [(UniformSelection, (40, 8)), (CombinatorialBandit, (39, 8)), (CombinatorialBandit, (40, 7))]
)
def test_a_draw_of_another_selection_with_the_same_seed_is_refused(kind, sizes):
    draw = kind(*sizes, generator=seeded()).draw()
    with pytest.raises(ValueError, match="must be a draw of this selection"):
        CombinatorialBandit(40, 8, generator=seeded()).update(draw, np.ones(len(draw)))


def test_a_draw_is_its_own_copy_and_takes_other_loss_weights():
    indices, probs = np.array([4, 2]), np.array([0.5, 1.0])
    draw = Bare(10, 2).make_draw(indices, probs, 0.25)
    indices[0], probs[0] = 7, 0.9
    assert (draw.indices.tolist(), draw.probs.tolist(), draw.loss_weights.tolist()) == (
        [4, 2],
        [0.5, 1.0],
        [0.25, 0.25],
    )
    with pytest.raises(ValueError, match="read-only"):
        draw.loss_weights[0] = 1.0


@pytest.mark.parametrize("min_batch_size", [0, 9, -1])
def test_a_smallest_batch_lies_between_one_and_the_largest(min_batch_size):
    with pytest.raises(ValueError, match="`min_batch_size` must be at"):
        Halving(20, 8, min_batch_size=min_batch_size)


def test_a_saved_draw_may_be_of_any_size_up_to_the_largest():
    draw = CombinatorialBandit(40, 8, generator=seeded()).draw()
    again = Draw.from_state(draw.state_dict(), num_samples=40, max_size=9)
    assert again.indices.tolist() == draw.indices.tolist()
    with pytest.raises(ValueError, match=r"`len\(saved\['indices'\]\)` must be at most 7"):
        Draw.from_state(draw.state_dict(), max_size=7, name="saved")
    with pytest.raises(ValueError, match=r"must hold integers in \[0, 5\)"):
        Draw.from_state(draw.state_dict(), num_samples=5)
    with pytest.raises(ValueError, match=r"`state\['probs'\]` must be a vector of length 8"):
        Draw.from_state({**draw.state_dict(), "probs": torch.ones(7)})


def test_a_shard_is_a_selection_like_any_other():
    assert [stratum_size(10, stratum, 4) for stratum in range(4)] == [3, 3, 2, 2]
    bandit = CombinatorialBandit(3, 2, generator=seeded())
    stratum = Stratum(bandit, 10, number=1, num_strata=4)
    assert isinstance(stratum, Selection)
    assert (stratum.batch_size, stratum.min_batch_size, stratum.draws_per_epoch, stratum.learns) == (2, 2, 1, True)
    assert stratum.generator is bandit.generator
    assert not Stratum(UniformSelection(3, 2), 10, number=1, num_strata=4).learns
    draw = stratum.draw()
    assert set(draw.indices % 4) == {1}
    assert stratum.check(draw, [1, 2]).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"got scores\[0\]=-1.0"):
        stratum.check(draw, [-1.0, 2.0])
    made = stratum.make_draw([1, 9], 0.5)
    assert made.loss_weights == approx([0.2, 0.2])
    stratum.update(made, [1.0, 2.0])
    with pytest.raises(TypeError, match="`selection` must be a Selection, got selection of type str"):
        Stratum("uniform", 10, number=1, num_strata=4)  # pyright: ignore[reportArgumentType]


def test_shuffled_epochs_hand_out_every_sample_once_and_go_on_from_a_state():
    epochs = ShuffledEpochs(10, seeded())
    first = np.concatenate([epochs.take(4), epochs.take(3)])
    assert len(set(first.tolist())) == 7
    state, generator = epochs.state_dict(), epochs.generator.get_state()
    expected = [epochs.take(3).tolist(), epochs.take(6).tolist()]
    assert len(set(first.tolist()) | set(expected[0])) == 10
    twin = ShuffledEpochs(10, seeded(5))
    twin.load_state_dict(state)
    twin.generator.set_state(generator)
    assert [twin.take(3).tolist(), twin.take(6).tolist()] == expected
    for broken in (None, {"seed": 1}, {"seed": -1, "position": 0}, {"seed": 1, "position": 11}):
        with pytest.raises((TypeError, ValueError), match=r"`state\['(seed|position)'\]` must be"):
            twin.load_state_dict(broken)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("thing", "line"),
    [
        (
            CombinatorialBandit(100, 7, generator=seeded()),
            "CombinatorialBandit(num_samples=100, batch_size=7, exploration=0.4, "
            "feedback=ScaleFree(rate=0.3, bound=1.0, memory=0.9), gate=Gate(min_gain=0.1))",
        ),
        (
            CombinatorialBandit(100, 7, exploration=1, feedback="proof", gate=None, generator=seeded()),
            "CombinatorialBandit(num_samples=100, batch_size=7, exploration=1.0, "
            "feedback=ProofFeedback(max_norm=None), gate=None)",
        ),
        (
            ReplacementBandit(100, 7, form="original", max_norm=2, generator=seeded()),
            "ReplacementBandit(num_samples=100, batch_size=7, exploration=0.4, form='original', max_norm=2.0)",
        ),
        (
            ReplacementSelection(100, 7, generator=seeded()),
            "ReplacementSelection(num_samples=100, batch_size=7, exploration=0.4)",
        ),
        (UniformSelection(100, 7, generator=seeded()), "UniformSelection(num_samples=100, batch_size=7)"),
        (WeightedSelection(np.ones(9), 2, generator=seeded()), "WeightedSelection(num_samples=9, batch_size=2)"),
        (
            Halving(20, 8, min_batch_size=3, generator=seeded()),
            "Halving(num_samples=20, batch_size=8, min_batch_size=3)",
        ),
        (
            Stratum(UniformSelection(3, 2, generator=seeded()), 10, number=1, num_strata=4),
            "Stratum(UniformSelection(num_samples=3, batch_size=2), num_samples=10, number=1, num_strata=4)",
        ),
        (ListingFeedback(2), "ListingFeedback(max_norm=2.0)"),
        (ProofFeedback(), "ProofFeedback(max_norm=None)"),
        (ScaleFree(rate=1), "ScaleFree(rate=1.0, bound=1.0, memory=0.9)"),
        (Gate(np.float64(0.25)), "Gate(min_gain=0.25)"),
        (SecondMoment(), "SecondMoment(ratio=nan, memory=0.98)"),
    ],
)
def test_everything_is_told_in_one_line(thing, line):
    assert repr(thing) == line
