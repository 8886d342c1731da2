"""`samples()`: what training saw of every sample, from any loop, through a checkpoint, in strata."""

import csv
import math

import numpy as np
import pytest
import torch
from pytest import approx
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, ReplacementBandit, UniformSelection
from adamcb.selection import Selection, Strata, Stratum
from adamcb.training._samples import SampleRecord
from tests.reference.samples import SlowSamples
from tests.training.problem import digits, eager, losses_of, mlp, train

N, K = 100, 10


class Rests(Selection):
    """Takes samples as they come, with repeats, and listens to every third batch only."""

    repeats = True

    def __init__(self) -> None:
        super().__init__(N, K, generator=torch.Generator().manual_seed(0))
        self.number = 0

    @property
    def listens(self) -> bool:
        return self.number % 3 == 0

    def draw(self):
        self.number += 1
        return self.make_draw((np.arange(K) * self.number) % 60, K / N)


class Heard:
    """An observer that keeps the scores of the batch that was learned last."""

    def __init__(self) -> None:
        self.scores: np.ndarray | None = None

    def note_draw(self, draw) -> None:
        self.scores = None

    def note_scores(self, draw, scores) -> None:
        self.scores = scores


def replacement() -> Selection:
    return ReplacementBandit(N, K, generator=torch.Generator().manual_seed(0))


def uniform() -> Selection:
    return UniformSelection(N, K, generator=torch.Generator().manual_seed(0))


def assert_like(loader: AdaptiveLoader, slow: SlowSamples) -> None:
    table = loader.samples()
    assert sorted(table.index.tolist()) == list(range(N))
    for i, index in enumerate(table.index.tolist()):
        found = (table.count[i], table.last_score[i], table.mean_score[i], table.mean_loss[i])
        assert found == approx(slow.row(index), rel=1e-5, nan_ok=True), index


@pytest.mark.parametrize(
    "make", [lambda: eager(N, K), Rests, replacement, uniform], ids=["all", "rests", "repeats", "none"]
)
def test_it_is_the_slow_twin_in_a_loop_of_its_own(make):
    model, slow, heard = mlp(), SlowSamples(), Heard()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = AdaptiveLoader(model, digits(N), K, selection=make(), observers=(heard,))
    for _ in range(3):
        for batch in loader:
            x, y = batch
            losses = losses_of(model, x, y)
            optimizer.zero_grad()
            loader.weigh(losses).backward()
            optimizer.step()
            loader.learn()
            slow.note(batch.draw.indices, losses.detach(), heard.scores)
    assert_like(loader, slow)


def test_suspicion_is_the_rank_of_the_mean_loss_and_those_not_visited_come_last():
    record = SampleRecord(5)
    selection = UniformSelection(5, 4, generator=torch.Generator().manual_seed(0))
    record.note(selection.make_draw([0, 1, 2, 4], 0.8), np.array([1.0, 3.0, 1.0, 2.0]), None)
    table = record.table()
    assert table.index.tolist() == [1, 4, 0, 2, 3]
    assert table.suspicion.tolist()[:4] == [1.0, 0.75, 0.5, 0.5]
    assert math.isnan(table.suspicion[4])
    assert math.isnan(table.mean_loss[4])
    assert np.isnan(table.last_score).all()
    assert table.count.tolist() == [1, 1, 1, 1, 0]


def test_wrong_labels_come_first():
    images, labels = digits(600).tensors
    wrong = torch.randperm(600, generator=torch.Generator().manual_seed(3))[:30]
    labels = labels.clone()
    labels[wrong] = (labels[wrong] + 5) % 10
    trainer = AdamCB(mlp(width=32), TensorDataset(images, labels), 20, lr=0.01)
    train(trainer, 8 * 30)
    found = set(trainer.samples().top(30).index.tolist()) & set(wrong.tolist())
    assert len(found) >= 24  # by chance: 1.5


def test_a_resumed_run_has_the_same_table(tmp_path):
    def new() -> AdamCB:
        return AdamCB(mlp(), digits(N), K, lr=0.01, selection=eager(N, K), feedback_delay=2)

    whole, first, second = new(), new(), new()
    train(whole, 30)
    train(first, 13)
    first.save(tmp_path / "checkpoint.pt")
    train(second, 3)
    second.load(tmp_path / "checkpoint.pt")
    train(second, 17)
    for name, column in whole.samples().as_dict().items():
        np.testing.assert_array_equal(second.samples().as_dict()[name], column, err_msg=name)
    assert whole.samples().count.sum() == 28 * K, "the feedback of two batches is on its way"


def test_a_state_that_does_not_fit_changes_nothing():
    trainer = AdamCB(mlp(), digits(N), K, selection=eager(N, K))
    train(trainer, 3)
    before, state = trainer.samples().as_dict(), trainer.state_dict()
    for entries in (torch.zeros(16, dtype=torch.uint8), torch.zeros(16 * N), "no", torch.full((16 * N,), 255).byte()):
        with pytest.raises(ValueError, match=r"`state\['samples'\]` must"):
            trainer.load_state_dict({**state, "vectors": {**state["vectors"], "samples.entries": entries}})
    for name, column in trainer.samples().as_dict().items():
        np.testing.assert_array_equal(before[name], column)


def test_a_shard_knows_its_own_samples_only():
    inner = CombinatorialBandit(33, 4, gate=None, generator=torch.Generator().manual_seed(0))
    stratum = Stratum(inner, N, number=2, num_strata=3)
    record, slow = SampleRecord.of(Strata([stratum])), SlowSamples()
    rng = np.random.default_rng(0)
    for _ in range(20):
        draw, losses, scores = stratum.draw(), rng.random(4), rng.random(4)
        record.note(draw, losses, scores)
        slow.note(draw.indices, losses, scores)
    table = record.table()
    assert sorted(table.index.tolist()) == list(range(2, N, 3))
    for i, index in enumerate(table.index.tolist()):
        assert (table.count[i], table.mean_loss[i]) == approx((slow.row(index)[0], slow.row(index)[3]), nan_ok=True)


def test_it_can_be_switched_off():
    loader = AdaptiveLoader(mlp(), digits(N), K, record_samples=False)
    assert "samples.entries" not in loader.state_dict()["vectors"]
    with pytest.raises(RuntimeError, match="record_samples=False"):
        loader.samples()
    with pytest.raises(TypeError, match="`record_samples` must"):
        AdaptiveLoader(mlp(), digits(N), K, record_samples="no")  # pyright: ignore[reportArgumentType]


def test_a_loss_in_half_precision_is_recorded():
    model = nn.Linear(4, 1).to(torch.bfloat16)
    data = TensorDataset(torch.ones(20, 4, dtype=torch.bfloat16))
    loader = AdaptiveLoader(model, data, 5)
    for (x,) in loader:
        loader.weigh(model(x).squeeze(1) ** 2).backward()
    assert (loader.samples().mean_loss > 0.0).all()
    assert loader.samples().count.tolist() == [1] * 20


def test_the_table_is_cut_and_written(tmp_path):
    trainer = AdamCB(mlp(), digits(N), K, selection=eager(N, K))
    train(trainer, 5)
    table = trainer.samples()
    assert (len(table), len(table.top(7)), len(table.top(1000))) == (N, 7, N)
    assert table.top(7).index.tolist() == table.index[:7].tolist()
    table.to_csv(tmp_path / "samples.csv")
    with (tmp_path / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == table.index.tolist()
    assert [float(row["mean_loss"] or "nan") for row in rows] == approx(table.mean_loss.tolist(), rel=1e-6, nan_ok=True)
    with pytest.raises(ValueError, match="`k` must"):
        table.top(-1)
