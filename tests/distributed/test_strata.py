"""Sharded weights in strata: the same draws on any number of ranks, and states that any of them can take."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from pytest import approx

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, QueueBandit
from adamcb.selection import Strata, Stratum, UniformSelection
from adamcb.training import Ranks
from adamcb.training._portable import unpack
from adamcb.training._resharding import Blocks
from tests.distributed.launch import launch
from tests.distributed.problem import in_ranks
from tests.selection.enumeration import fast_distribution
from tests.training.problem import digits, losses_of, mlp, plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SAMPLES, BATCH_SIZE, STRATA = 490, 24, 12  # strata of 41 and 40 samples
CPU = torch.device("cpu")
dcp: Any = torch.distributed.checkpoint  # type checkers do not know what it exports


def new_trainer(seed: int = 0, **options) -> AdamCB:
    model = in_ranks(mlp(dtype=torch.float64, seed=seed))
    options = {"batch_size": BATCH_SIZE, "sharded": True, "seed": seed, **options}
    return AdamCB(model, digits(SAMPLES, torch.float64), lr=0.01, **options)


def step(trainer: AdamCB, until: int) -> list:
    draws = []
    while trainer.meter.steps < until:
        for batch in trainer:
            draws.append(batch.draw.indices.tolist())
            trainer.step(losses_of(trainer.model, *batch))
            if trainer.meter.steps == until:
                break
    return draws


def result(trainer: AdamCB, draws: list) -> dict:
    selection, samples = trainer.selection, trainer.samples()
    assert isinstance(selection, Strata)
    return {
        "draws": draws,
        "parameters": torch.cat([value.detach().flatten() for value in trainer.model.parameters()]).numpy(),
        "probs": selection.inclusion_probs(),
        "weights": {stratum.number: stratum.selection.weights for stratum in selection.strata},  # pyright: ignore
        "counts": dict(zip(samples.index.tolist(), samples.count.tolist(), strict=True)),
        "readings": {name: value for name, value in trainer.meter.as_dict().items() if "seconds" not in name},
    }


def train(steps: int, folder: str | None = None, options: dict | None = None) -> dict:
    trainer = new_trainer(**(options or {}))
    done = result(trainer, step(trainer, steps))
    if folder is not None:
        dcp.save({"trainer": trainer}, checkpoint_id=folder)
        done["rows"] = {name: len(own(value)) for name, value in trainer.state_dict()["vectors"].items()}
    return done


def own(vector: torch.Tensor) -> torch.Tensor:
    return vector.to_local() if hasattr(vector, "to_local") else vector  # pyright: ignore


def go_on(folder: str, steps: int, options: dict | None = None) -> dict:
    trainer = new_trainer(seed=4, **(options or {}))
    step(trainer, 2)
    dcp.load({"trainer": trainer}, checkpoint_id=folder)
    loaded = result(trainer, [])
    return {**result(trainer, step(trainer, steps)), "loaded": loaded}


def together(ranks: list[dict]) -> list:
    """Return what all ranks drew, step by step."""
    return [sorted(sum(parts, [])) for parts in zip(*(rank["draws"] for rank in ranks), strict=True)]


def assert_same(ranks: list[dict], expected: dict, steps: slice, strata: int = STRATA) -> None:
    for rank in ranks:
        if isinstance(rank, Exception):
            raise rank
    assert together(ranks) == [sorted(draw) for draw in expected["draws"][steps]]
    np.testing.assert_allclose(sum(rank["probs"] for rank in ranks), expected["probs"], rtol=1e-6)
    weights = {number: values for rank in ranks for number, values in rank["weights"].items()}
    assert sorted(weights) == list(range(strata))
    for number, values in weights.items():
        np.testing.assert_allclose(values, expected["weights"][number], rtol=1e-6)
    counts = {index: count for rank in ranks for index, count in rank["counts"].items()}
    assert counts == expected["counts"]
    for rank in ranks:
        np.testing.assert_allclose(rank["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)


def test_two_ranks_share_the_strata_of_one_process_and_it_goes_on_with_what_they_saved(tmp_path):
    expected, folder = train(45), str(tmp_path / "saved")
    assert np.ptp(expected["probs"]) > 0.01
    ranks = launch(2, train, 30, folder)
    halfway = train(30)
    assert_same(ranks, halfway, slice(30))
    assert all(set(rank["rows"].values()) == {SAMPLES // 2} for rank in ranks)  # none holds all
    resumed = go_on(folder, 45)
    np.testing.assert_array_equal(resumed["loaded"]["probs"], sum(rank["probs"] for rank in ranks))
    assert_same([resumed], expected, slice(30, 45))
    assert resumed["loaded"]["readings"]["steps"] == 30
    assert resumed["loaded"]["readings"]["coverage"] == pytest.approx(halfway["readings"]["coverage"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1, "multiprocessing_context": "fork", "feedback_delay": 2}, {"min_batch_size": 12}],
    ids=["plain", "ahead", "sizes"],
)
def test_four_ranks_save_and_any_number_goes_on(tmp_path, options):
    """Every sample has the probability that it had, and the draws are those of an undisturbed run.

    Of five ranks, two hold three of the twelve strata, and three hold two.
    """
    expected, folder = train(70, None, options), str(tmp_path / "saved")
    ranks = launch(4, train, 50, folder, options)
    for world_size in (3, 4, 5) if options else (3, 2, 4, 5):
        resumed = launch(world_size, go_on, folder, 70, options)
        loaded = sum(rank["loaded"]["probs"] for rank in resumed)
        np.testing.assert_array_equal(loaded, sum(rank["probs"] for rank in ranks))
        assert_same(resumed, expected, slice(50, 70))
        if world_size == 4:
            assert [rank["loaded"]["readings"] for rank in resumed] == [rank["readings"] for rank in ranks]


@pytest.mark.slow
def test_ranks_that_cannot_share_a_batch_equally_go_on_and_save(tmp_path):
    """Batches of 16 have 8 strata, of which three ranks hold 3, 3 and 2: not the samples with i mod 3 = rank."""
    options = {"batch_size": 16}
    halfway, expected = train(40, None, options), train(46, None, options)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    saved = train(34, first, options)
    assert np.ptp(saved["probs"]) > 0.01
    ranks = launch(3, go_on_and_save, first, second, 40, options)
    assert_same(ranks, halfway, slice(34, 40), strata=8)
    assert [len(rank["weights"]) for rank in ranks] == [3, 3, 2]
    loaded, sizes = [rank["loaded"]["readings"] for rank in ranks], saved["readings"]["effective_sample_size"]
    assert [readings["samples"] for readings in loaded] == approx([1.0, 1.0, 1.0])
    assert [readings["effective_sample_size"] / sizes for readings in loaded] == approx([3 / 8, 3 / 8, 2 / 8])
    np.testing.assert_array_equal(sum(rank["loaded"]["probs"] for rank in ranks), saved["probs"])
    last = go_on(second, 46, options)
    np.testing.assert_array_equal(last["loaded"]["probs"], sum(rank["probs"] for rank in ranks))
    assert_same([last], expected, slice(40, 46), strata=8)
    assert last["loaded"]["readings"]["coverage"] == approx(halfway["readings"]["coverage"])


def go_on_and_save(folder: str, next_folder: str, steps: int, options: dict) -> dict:
    trainer = new_trainer(seed=4, **options)
    dcp.load({"trainer": trainer}, checkpoint_id=folder)
    loaded = result(trainer, [])
    done = {**result(trainer, step(trainer, steps)), "loaded": loaded}
    dcp.save({"trainer": trainer}, checkpoint_id=next_folder)
    return done


def sizes_of(sharded: bool) -> list[int]:
    trainer = new_trainer(sharded=sharded, min_batch_size=12)
    return [len(draw) for draw in step(trainer, 100)]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("sharded", [True, False])
def test_smaller_batches_have_one_size_a_step_in_equal_parts(world_size, sharded):
    first, *others = launch(world_size, sizes_of, sharded)
    assert set(first) == {12 // world_size, BATCH_SIZE // world_size}
    assert others == [first] * (world_size - 1)
    if sharded:
        assert first == [size // world_size for size in sizes_of(True)]


def blocks_and_back(num_samples: int, num_strata: int) -> tuple[list, list]:
    ranks = Ranks.current()
    blocks = Blocks(num_samples, num_strata, ranks, CPU)
    columns = [torch.arange(s, num_samples, num_strata) for s in range(ranks.rank, num_strata, ranks.size)]
    tables = [torch.stack([rows, rows**2], dim=1) for rows in columns]
    whole = blocks.of(tables)
    assert all(map(torch.equal, blocks.columns(whole), tables))
    return own(whole).tolist(), own(blocks.of([rows % 3 == 0 for rows in columns])).tolist()


@pytest.mark.parametrize(("world_size", "num_samples", "num_strata"), [(1, 9, 1), (1, 9, 4), (3, 4, 3), (3, 23, 5)])
def test_blocks_are_the_samples_in_their_order(world_size, num_samples, num_strata):
    """Of four samples, the last of three ranks has no row. Of five strata, it holds one."""
    ranks = launch(world_size, blocks_and_back, num_samples, num_strata)
    assert sum((table for table, _ in ranks), []) == [[i, i * i] for i in range(num_samples)]
    assert sum((flags for _, flags in ranks), []) == [i % 3 == 0 for i in range(num_samples)]


def stratum_of(n: int, k: int, number: int, num_strata: int) -> Stratum:
    size = len(range(number, n, num_strata))
    bandit = CombinatorialBandit(size, k, gate=None, generator=torch.Generator().manual_seed(number))
    bandit.weights = np.random.default_rng(number).gamma(0.3, size=size)
    return Stratum(bandit, n, number=number, num_strata=num_strata)


def test_three_ranks_draw_from_four_strata_by_the_probabilities_that_they_state():
    """Every batch that they can draw together, with its exact chance; rank 0 draws two samples of four."""
    n, num_strata, num_ranks = 14, 4, 3
    ranks = [Strata([stratum_of(n, 1, s, num_strata) for s in range(r, num_strata, num_ranks)]) for r in range(3)]
    assert [rank.batch_size for rank in ranks] == [2, 1, 1]
    designs = []
    for rank in ranks:
        for stratum in rank.strata:
            weights = stratum.selection.weights  # pyright: ignore[reportAttributeAccessIssue]
            design = fast_distribution(weights, 1, 0.4)
            designs.append([(stratum.number + num_strata * np.array([*subset]), p) for subset, p in design.items()])
    stated = np.sum([rank.inclusion_probs() for rank in ranks], axis=0)
    values = np.random.default_rng(9).normal(size=n)
    found, mean = np.zeros(n), 0.0
    for batch in itertools.product(*designs):
        chosen, chance = np.concatenate([part for part, _ in batch]), np.prod([p for _, p in batch])
        found[chosen] += chance
        mean += chance * np.sum(values[chosen] / (n * stated[chosen]))
    assert np.ptp(found) > 0.1
    np.testing.assert_allclose(found, stated, rtol=0.0, atol=1e-12)
    assert mean == approx(values.mean(), abs=1e-12)


@pytest.mark.parametrize(("num_strata", "num_ranks"), [(1, 1), (4, 2), (4, 3), (7, 3), (8, 8), (12, 5)])
def test_the_own_samples_of_a_rank_are_counted_in_ascending_order(num_strata, num_ranks):
    for n in (num_strata, 61):
        for rank in range(num_ranks):
            numbers = range(rank, num_strata, num_ranks)
            strata = [UniformSelection(len(range(s, n, num_strata)), 1) for s in numbers]
            strata = Strata(
                [Stratum(one, n, number=s, num_strata=num_strata) for s, one in zip(numbers, strata, strict=True)]
            )
            mine = np.array([i for i in range(n) if i % num_strata in numbers])
            assert strata.own_samples == len(mine)
            assert strata.places_of(mine).tolist() == list(range(len(mine)))
            assert strata.samples_at(np.arange(len(mine))).tolist() == mine.tolist()


def test_a_state_of_other_strata_says_how_to_take_it():
    few, many = (AdaptiveLoader(mlp(), digits(100), 24, sharded=count) for count in (4, 8))
    before = plain(unpack(many.state_dict()))
    with pytest.raises(ValueError, match="num_strata=8, got num_strata=4: make it with sharded=4"):
        many.load_state_dict(few.state_dict())
    assert plain(unpack(many.state_dict())) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharded": 5}, "`batch_size` must be a multiple of the number of strata, 5"),
        ({"sharded": 0}, "`sharded` must be at least 1, got sharded=0"),
        ({"sharded": 4, "selection": "given"}, "`sharded` must be True where `selection` is given"),
    ],
)
def test_strata_that_cannot_be_shared_are_refused(options, message):
    if "selection" in options:
        options = {**options, "selection": UniformSelection(100, 24)}
    with pytest.raises(ValueError, match=message):
        AdaptiveLoader(mlp(), digits(100), 24, **options)


def too_few(options: dict) -> None:
    AdaptiveLoader(mlp(), digits(100), **{"batch_size": 24, "sharded": True, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharded": 2}, "`sharded` must be at least the number of ranks, 3, .* got sharded=2"),
        ({"batch_size": 10}, "`batch_size` must be a multiple of the number of ranks, 3, .* got batch_size=10"),
    ],
)
def test_every_rank_must_hold_a_stratum(options, message):
    for rank in launch(3, too_few, options):
        with pytest.raises(ValueError, match=message):
            raise rank


def held(count: int, first: int = 0, seed: int = 0) -> Strata:
    def stratum(number: int) -> Stratum:
        generator = torch.Generator().manual_seed(seed + number)
        size = len(range(number, 40, 4))
        return Stratum(QueueBandit(size, 2, generator=generator), 40, number=number, num_strata=4)

    return Strata([stratum(number) for number in range(first, 4, 4 // count)])


def test_an_update_that_one_stratum_refuses_changes_none():
    strata = held(4)
    draw = strata.draw()
    before = plain(strata.state_dict())
    with pytest.raises(ValueError, match="must be at most"):
        strata.update(draw, [1.0] * 7 + [1e300])
    assert plain(strata.state_dict()) == before
    strata.update(draw, range(8))
    assert plain(strata.state_dict()) != before


def test_a_state_that_one_stratum_refuses_changes_none():
    strata, other = held(4), held(4, seed=9)
    other.update(other.draw(), range(8))
    state, before = other.state_dict(), plain(strata.state_dict())
    state["strata"][3]["selection"]["weights"] = torch.zeros(10)
    with pytest.raises(ValueError, match="weights"):
        strata.load_state_dict(state)
    assert plain(strata.state_dict()) == before
    with pytest.raises(ValueError, match="held=2, got held=4"):
        held(2).load_state_dict(state)


def test_a_rank_holds_strata_that_are_w_apart():
    with pytest.raises(ValueError, match=r"`strata` must be r, r \+ W, .* of 4, with r below W, got 2, 0"):
        Strata(held(2, first=0).strata[::-1])
    with pytest.raises(ValueError, match="got 2, 3"):
        Strata(held(4).strata[2:])
    with pytest.raises(ValueError, match="got 0, 1"):
        Strata(held(4).strata[:2])
    assert held(2, first=1).own_samples == 20
