"""The rivals' choices: against plain twins, by enumeration, and by sampling with bounds from the standard error."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from adamcb.lab.methods.rivals import (
    ClassBalanced,
    InfoBatch,
    LastSeen,
    Looked,
    Presampling,
    ResidualDistribution,
    Scorer,
    SelectiveBackprop,
    Undersampling,
    VarianceReducerBandit,
    WeightedLoss,
)
from adamcb.selection import Selection
from tests.reference import rivals

N, K = 23, 4
LOSSES = np.random.default_rng(0).exponential(size=N)
LABELS = np.array([5, 7, 7, 7] * 5 + [7, 7, 7])  # five of one class, eighteen of the other


class Foretold(Looked):
    """Losses that belong to the sample, so that what is drawn can be foretold: a bound is the root of the loss."""

    def __init__(self, losses: np.ndarray) -> None:
        super().__init__(torch.empty(0), torch.empty(0))
        object.__setattr__(self, "given", losses)

    losses = property(lambda self: self.given)
    bounds = property(lambda self: np.sqrt(self.given))


def scorer(indices: np.ndarray) -> Looked:
    return Foretold(LOSSES[indices])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BUILD: dict[str, Callable[[int], Selection]] = {
    "last": lambda seed: LastSeen(N, K, exploration=0.3, generator=generator(seed)),
    "vrb": lambda seed: VarianceReducerBandit(N, K, total_steps=40, generator=generator(seed)),
    "infobatch": lambda seed: InfoBatch(N, K, total_steps=40, generator=generator(seed)),
    "selective-backprop": lambda seed: SelectiveBackprop(N, K, scorer=scorer, generator=generator(seed)),
    "balanced-sampler": lambda seed: ClassBalanced(N, K, labels=LABELS, generator=generator(seed)),
    "weighted-loss": lambda seed: WeightedLoss(N, K, labels=LABELS, generator=generator(seed)),
    "undersampling": lambda seed: Undersampling(N, K, labels=LABELS, generator=generator(seed)),
    "rad": lambda seed: ResidualDistribution(N, K, losses=LOSSES.__getitem__, period=6, generator=generator(seed)),
    "presampling": lambda seed: Presampling(N, K, scorer=scorer, threshold=1.05, generator=generator(seed)),
}


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_a_rival_goes_on_from_its_state_bit_for_bit(build):
    norms = np.random.default_rng(1).exponential(size=(40, N))
    for stop in (2, 7, 23):
        first, second = build(0), build(9)
        assert isinstance(first, Selection)
        for step in range(40):
            if step == stop:
                second.load_state_dict(first.state_dict())
            draw = first.draw()
            first.update(draw, norms[step, draw.indices])
            if step >= stop:
                twin = second.draw()
                second.update(twin, norms[step, twin.indices])
                for name in ("indices", "probs", "loss_weights"):
                    assert np.array_equal(getattr(draw, name), getattr(twin, name))
        assert np.array_equal(first.inclusion_probs(), second.inclusion_probs())


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_a_rival_refuses_a_state_of_other_settings_and_feedback_of_others(build):
    selection, other = build(0), UNLIKE
    with pytest.raises(ValueError, match="`state` must be saved with"):
        selection.load_state_dict({**selection.state_dict(), "settings": {"kind": "other"}})
    with pytest.raises(ValueError, match="`draw` must be a draw of this selection"):
        selection.update(other.draw(), np.ones(K))
    with pytest.raises(ValueError, match="`scores` must hold finite numbers"):
        selection.update(selection.draw(), [1.0, 2.0, np.nan, 1.0])


UNLIKE = InfoBatch(N, K, total_steps=3, generator=generator(77))


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_expected_occurrences_sum_to_the_batch_size(build):
    selection = build(0)
    for _ in range(15):
        draw = selection.draw()
        selection.update(draw, LOSSES[draw.indices])
        probs = selection.inclusion_probs()
        assert probs.sum() == pytest.approx(K, rel=1e-12)
        assert (probs >= 0.0).all()


def test_last_seen_sees_every_sample_once_and_then_follows_the_last_norms():
    selection = LastSeen(N, K, exploration=0.3, generator=generator())
    rng, last = np.random.default_rng(2), {}
    seen = []
    for _ in range(N // K):
        draw = selection.draw()
        seen += draw.indices.tolist()
        assert draw.loss_weights.tolist() == [1 / K] * K
        last |= dict(zip(draw.indices.tolist(), norms := rng.exponential(size=K), strict=True))
        selection.update(draw, norms)
    assert len(set(seen)) == len(seen) == N - N % K
    average = float(np.mean(list(last.values())))
    for _ in range(30):
        probs = K * np.array(rivals.mixed([last.get(index, average) for index in range(N)], 0.3))
        draw = selection.draw()
        assert draw.probs == pytest.approx(probs[draw.indices], rel=1e-12)
        assert draw.loss_weights == pytest.approx(1 / (N * draw.probs), rel=1e-12)
        assert selection.inclusion_probs() == pytest.approx(probs, rel=1e-12)
        values = rng.exponential(size=N)
        selection.update(draw, values[draw.indices])
        last |= {int(index): values[index] for index in draw.indices}


def test_last_seen_is_uniform_when_all_norms_are_zero():
    selection = LastSeen(N, K, generator=generator())
    for _ in range(8):
        draw = selection.draw()
        selection.update(draw, np.zeros(K))
    assert selection.inclusion_probs() == pytest.approx(np.full(N, K / N))


@pytest.mark.statistical
@pytest.mark.parametrize("build", [BUILD["last"], BUILD["vrb"]], ids=["last", "vrb"])
def test_draws_with_replacement_come_as_often_as_promised(build):
    selection = build(3)
    for _ in range(10):
        draw = selection.draw()
        selection.update(draw, 3.0 * LOSSES[draw.indices])
    probs, rounds = selection.inclusion_probs() / K, 5000
    counts = sum(np.bincount(selection.draw().indices, minlength=N) for _ in range(rounds))
    error = np.abs(counts / (rounds * K) - probs)
    assert (error <= 5 * np.sqrt(probs * (1 - probs) / (rounds * K))).all()
    assert probs.max() > 1.5 * probs.min()


def test_vrb_is_its_algorithm():
    selection = VarianceReducerBandit(N, K, total_steps=40, generator=generator())
    twin = rivals.VarianceReducer(N, 40 * K)
    rng = np.random.default_rng(4)
    for _ in range(40):
        assert selection.inclusion_probs() == pytest.approx(K * np.array(twin.probs()), rel=1e-12)
        draw = selection.draw()
        assert draw.loss_weights == pytest.approx([1 / (N * K * twin.probs()[index]) for index in draw.indices])
        norms = rng.exponential(size=N)[draw.indices]
        selection.update(draw, norms)
        twin.update(draw.indices.tolist(), norms.tolist())
    assert selection.exploration == pytest.approx((N / (40 * K)) ** (1 / 3))


def test_infobatch_leaves_half_of_the_easy_samples_out_and_doubles_the_rest():
    selection = InfoBatch(200, 10, total_steps=1000, generator=generator())
    losses = np.random.default_rng(5).exponential(size=200)
    first = []
    for _ in range(20):
        draw = selection.draw()
        first += draw.indices.tolist()
        assert draw.loss_weights.tolist() == [0.1] * 10
        selection.update(draw, losses[draw.indices])
    assert sorted(first) == list(range(200))
    hard, easy, kept = rivals.pruned_epoch(losses.tolist(), 0.5)
    epoch: dict[int, float] = {}
    for _ in range((len(hard) + kept) // 10):
        draw = selection.draw()
        assert not epoch.keys() & set(draw.indices.tolist())
        epoch |= dict(zip(draw.indices.tolist(), draw.loss_weights.tolist(), strict=True))
        in_easy = np.isin(draw.indices, list(easy))
        assert draw.probs == pytest.approx(np.where(in_easy, 0.5, 1.0) * 10 / (len(hard) + kept))
    assert len(easy & epoch.keys()) in range(kept - 9, kept + 1)
    assert len(hard - epoch.keys()) < 10
    for index, weight in epoch.items():
        assert weight == pytest.approx(0.2 if index in easy else 0.1)


@pytest.mark.statistical
def test_infobatch_epochs_add_up_to_all_data():
    """Σ of weight·x over what an epoch keeps has expectation Σx: 5 standard errors, fixed seed."""
    losses = np.concatenate([np.full(12, 0.1), np.full(8, 5.0)])
    values = np.random.default_rng(6).normal(size=20)
    selection = InfoBatch(20, 2, total_steps=10**9, generator=generator(1))
    for _ in range(10):
        draw = selection.draw()
        selection.update(draw, losses[draw.indices])
    sums = []
    for _ in range(3000):
        draws = [selection.draw() for _ in range(7)]  # 8 hard and 6 of 12 easy ones
        sums.append(sum(2 * draw.loss_weights @ values[draw.indices] for draw in draws))
    assert abs(np.mean(sums) - values.sum()) <= 5 * np.std(sums) / np.sqrt(len(sums))
    assert np.std(sums) > 0.1


def test_infobatch_ends_with_whole_epochs():
    """Epochs start at steps 0, 10, 17, …, 66, 73: with 20 hard and 10 of 20 easy samples one has 7 batches."""
    for delta, whole in ((0.73, True), (0.74, False)):
        selection = InfoBatch(40, 4, total_steps=100, delta=delta, generator=generator())
        for step in range(74):
            draw = selection.draw()
            selection.update(draw, np.where(draw.indices < 20, 0.0, 1.0))
            pruned = 10 <= step < 73 or (step == 73 and not whole)
            assert np.count_nonzero(selection.inclusion_probs()) == (30 if pruned else 40)
    assert InfoBatch(40, 4, total_steps=100).delta == 0.875


def test_infobatch_of_too_few_samples_keeps_all():
    selection = InfoBatch(5, 4, total_steps=100, generator=generator())
    for _ in range(10):
        draw = selection.draw()
        selection.update(draw, np.where(draw.indices == 0, 1.0, 0.0))
        assert draw.loss_weights.tolist() == [0.25] * 4


def test_selective_backprop_takes_by_the_percentile_of_the_loss():
    selection = SelectiveBackprop(N, K, scorer=scorer, beta=2.0, history=30, generator=generator())
    twin = rivals.LossPercentiles(30, 2.0)
    rng = np.random.default_rng(7)
    for _ in range(20):
        losses = rng.exponential(size=K).round(1)  # with ties
        assert selection.note_losses(losses) == pytest.approx(twin.probs(losses.tolist()), abs=1e-15)


@pytest.mark.statistical
def test_selective_backprop_takes_samples_in_proportion_to_their_probability():
    losses = np.random.default_rng(10).permutation(24) + 1.0
    selection = SelectiveBackprop(
        24, K, scorer=lambda indices: Foretold(losses[indices]), history=960, generator=generator(2)
    )
    assert sorted(np.concatenate([selection.draw().indices for _ in range(6)])) == list(range(24))  # the first epoch
    for _ in range(250):  # until the history is full
        selection.draw()
    rounds = 3000
    draws = [selection.draw() for _ in range(rounds)]
    counts = np.bincount(np.concatenate([draw.indices for draw in draws]), minlength=24)
    ranks = (losses - 1.0 + 20.5 / 40) ** 3  # every loss stands 40 times in the history
    expected = ranks / ranks.sum()
    # The history is 39 whole epochs and parts of two, in which a sample may be missing once in 960: 0.04 of a cube.
    assert (np.abs(counts / (rounds * K) - expected) <= 5 * np.sqrt(expected / (rounds * K)) + 0.04 * expected).all()
    assert all(draw.loss_weights.tolist() == [1 / K] * K for draw in draws)


def test_selective_backprop_with_equal_losses_takes_any():
    selection = SelectiveBackprop(N, K, scorer=lambda indices: Foretold(np.zeros(len(indices))), generator=generator())
    assert selection.note_losses(np.zeros(K)) == pytest.approx([((K + 1) / 2 / K) ** 3] * K)  # all are in the middle
    assert len({index for _ in range(100) for index in selection.draw().indices.tolist()}) == N


def test_presampling_waits_until_it_pays():
    selection = Presampling(N, K, scorer=scorer, generator=generator())
    assert selection.threshold == pytest.approx(2.0)
    assert selection.num_candidates == 12
    tau, rng = 0.0, np.random.default_rng(8)
    for _ in range(50):
        draw = selection.draw()
        assert draw.loss_weights.tolist() == [1 / K] * K
        scores = rng.exponential(size=K)
        selection.update(draw, scores)
        tau = 0.9 * tau + 0.1 * rivals.batch_increment(scores.tolist())
        assert selection.tau == pytest.approx(tau, rel=1e-12)
    for _ in range(50):
        draw = selection.draw()
        selection.update(draw, [1e3, 1e-3, 1e-3, 1e-3])  # τ = 2, of which the average falls short
    assert selection.tau < 2.0


@pytest.mark.statistical
def test_presampling_is_unbiased_and_draws_by_the_bound():
    selection = Presampling(N, K, scorer=scorer, threshold=0.5, generator=generator(4))
    selection.update(selection.draw(), [1.0, 2.0, 1.0, 50.0])
    selection.tau = 1.0
    values, sums = np.random.default_rng(9).normal(size=N), []
    asked: list[np.ndarray] = []

    def recording(indices: np.ndarray) -> Looked:
        asked.append(indices)
        return scorer(indices)

    selection.scorer = recording
    for round_ in range(4000):
        before = selection.tau
        draw = selection.draw()
        sums.append(draw.loss_weights @ values[draw.indices])
        if round_ < 30:
            scores = np.sqrt(LOSSES[asked[-1]])
            probs = dict(zip(asked[-1].tolist(), scores / scores.sum(), strict=True))
            assert draw.loss_weights == pytest.approx([1 / (K * 12 * probs[index]) for index in draw.indices])
            assert selection.tau == pytest.approx(0.9 * before + 0.1 * rivals.batch_increment(scores.tolist()))
    assert len(set(asked[0].tolist())) == 12
    assert abs(np.mean(sums) - values.mean()) <= 5 * np.std(sums) / np.sqrt(len(sums))


def test_scores_are_loss_and_gradient_at_the_logits():
    torch.manual_seed(0)
    inputs, labels = torch.randn(9, 5), torch.arange(9) % 3
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 3)).train()
    found = Scorer(model, TensorDataset(inputs, labels), "cpu")(np.array([4, 0, 8]))
    assert model.training
    logits = model.eval()(inputs[[4, 0, 8]]).detach().requires_grad_()
    losses = F.cross_entropy(logits, labels[[4, 0, 8]], reduction="none")
    losses.sum().backward()
    assert logits.grad is not None
    assert found.losses == pytest.approx(losses.detach().double().numpy(), rel=1e-6)
    assert found.bounds == pytest.approx(logits.grad.norm(dim=1).double().numpy(), rel=1e-5)


def test_scores_of_a_convolutional_network_do_not_depend_on_the_layout():
    torch.manual_seed(0)
    inputs, labels = torch.randn(9, 2, 6, 6), torch.arange(9) % 3
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    seen = []
    model.register_forward_pre_hook(lambda model, args: seen.append(args[0].stride()))
    found = Scorer(model, TensorDataset(inputs, labels), "cpu")(np.array([4, 0, 8]))
    expected = F.cross_entropy(model(inputs[[4, 0, 8]]), labels[[4, 0, 8]], reduction="none")
    assert [stride[1] for stride in seen] == [1, 36]
    assert found.losses == pytest.approx(expected.detach().double().numpy(), rel=1e-5)
