"""The rank's part of a draw, in the loader alone: no processes are needed to see that the parts are the whole."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb import BanditLoader, CombinatorialBandit, Draw, UniformSelection
from adamcb.data import DrawPart, part_of, whole_of
from adamcb.training import Ranks, _ranks, gather_scores
from tests.data.datasets import Made, Noisy, tensors

N, K = 41, 8


def loader(rank=0, num_ranks=1, dataset=None, **options):
    bandit = CombinatorialBandit(N, K, gate=None, generator=torch.Generator().manual_seed(0))
    return BanditLoader(dataset or tensors(N), bandit, rank=rank, num_ranks=num_ranks, **options)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_the_parts_of_all_ranks_are_the_draw(num_ranks):
    for alone, *parts in zip(loader(), *(loader(rank, num_ranks) for rank in range(num_ranks)), strict=True):
        for rank, part in enumerate(parts):
            draw = part.draw
            assert isinstance(draw, DrawPart)
            assert len(draw) == K // num_ranks
            assert part[1].tolist() == draw.indices.tolist()
            assert draw.indices.tolist() == alone.draw.indices[rank::num_ranks].tolist()
            assert draw.probs == approx(alone.draw.probs[rank::num_ranks])
            assert draw.whole.indices.tolist() == alone.draw.indices.tolist()
            assert not draw.probs.flags.writeable
        weights = np.concatenate([part.draw.loss_weights for part in parts])
        assert weights.sum() == approx(alone.draw.loss_weights.sum())


def test_samples_that_are_in_every_batch_are_spread_over_the_ranks():
    """They stand together at the end of a draw."""
    bandit = CombinatorialBandit(N, K, exploration=0.1, gate=None, generator=torch.Generator().manual_seed(0))
    weights = np.ones(N)
    weights[:4] = 1e6
    bandit.weights = weights
    draw = bandit.draw()
    assert np.flatnonzero(draw.probs == 1.0).tolist() == [4, 5, 6, 7]
    assert [int((part_of(draw, rank, 4).probs == 1.0).sum()) for rank in range(4)] == [1, 1, 1, 1]


def test_alone_a_part_is_the_draw_itself():
    draw = UniformSelection(N, K).draw()
    assert part_of(draw, 0, 1) is draw
    assert whole_of(draw) is draw
    assert whole_of(part_of(draw, 1, 2)) is draw
    assert type(Draw.from_state(part_of(draw, 1, 2).state_dict())) is Draw


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_one_rank_continues_on_any_number(num_workers):
    def indices(batches):
        return [batch.draw.indices.tolist() for batch in batches]

    first = loader(1, 2, dataset=Made(N), num_workers=num_workers)
    batches = iter(first)
    next(batches)
    state, learned = first.state_dict(), first.selection.state_dict()
    del batches
    for rank, num_ranks in [(0, 1), (0, 2), (3, 4)]:
        resumed = loader(rank, num_ranks, dataset=Made(N), num_workers=num_workers)
        resumed.selection.load_state_dict(learned)
        resumed.load_state_dict(state)
        expected = indices(loader(dataset=Made(N)))[1:]
        assert indices(resumed) == [whole[rank::num_ranks] for whole in expected]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_random_transforms_in_workers_differ_between_ranks_and_not_between_runs():
    def noise(rank):
        return [batch[1].tolist() for batch in loader(rank, 2, dataset=Noisy(N), num_workers=1)]

    assert noise(0) == noise(0)
    assert noise(1) == noise(1)
    assert not {value for batch in noise(0) for value in batch} & {value for batch in noise(1) for value in batch}


@pytest.mark.parametrize(
    ("rank", "num_ranks", "message"),
    [
        (0, 3, "`batch_size` must be a multiple of num_ranks=3, got batch_size=8"),
        (2, 2, "`rank` must be at most 1, got rank=2"),
        (-1, 2, "`rank` must be at least 0"),
        (0, 0, "`num_ranks` must be at least 1"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank, num_ranks, message):
    with pytest.raises(ValueError, match=message):
        loader(rank, num_ranks)


MIXED = (torch.float64, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("kinds", [(torch.float32,) * 3, (torch.float64,) * 3, MIXED])
@pytest.mark.parametrize("measures", [True, False])
def test_what_ranks_tell_comes_back_to_the_bit_in_the_order_of_the_draw(kinds, measures, monkeypatch):
    whole = UniformSelection(10**12, 12, generator=torch.Generator().manual_seed(0)).draw()
    columns = [torch.randn(12).to(kind) for kind in kinds]
    columns[2][4] = torch.nan
    told = []
    monkeypatch.setattr(_ranks, "_all_gather", lambda sent, size: told.append(sent) or sent)
    for rank in range(3):
        measured, arrived, losses = (column[rank::3] for column in columns)
        own = (measured if measures else None, arrived, losses, torch.tensor(float(rank)))
        heard = gather_scores(Ranks(rank, 3), part_of(whole, rank, 3), *own)
    heard = heard._replace(bits=torch.stack(told))
    indices, found = heard.columns()
    assert indices.tolist() == whole.indices.tolist()
    assert (found[0] is None) != measures
    for column, expected in list(zip(found, columns, strict=True))[not measures :]:
        assert column is not None
        assert column.dtype == expected.dtype
        assert torch.equal(column.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert heard.loss.item() == 1.0
