"""Weights in strata: unbiased, the same as the stratified design in one process, and without traffic."""

import itertools
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pytest import approx

from adamcb import AdamCB, CombinatorialBandit, UniformSelection
from adamcb._seeds import derived_seed
from adamcb.selection import Selection, Stratum
from adamcb.training import read_checkpoint
from tests.distributed.launch import launch
from tests.distributed.problem import BATCH_SIZE, SAMPLES, new_trainer, result, train, train_anew
from tests.reference.stratified import Stratified
from tests.selection.enumeration import fast_distribution
from tests.training.problem import digits, mlp

N, K, W = 11, 6, 3  # strata of 4, 4 and 3 samples


def strata(n: int, k: int, num_strata: int, seed: int = 0) -> list[Stratum]:
    made = []
    for stratum in range(num_strata):
        generator = torch.Generator().manual_seed(derived_seed(seed, stratum) if stratum else seed)
        size = len(range(stratum, n, num_strata))
        bandit = CombinatorialBandit(size, k // num_strata, gate=None, generator=generator)
        made.append(Stratum(bandit, n, number=stratum, num_strata=num_strata))
    return made


def test_the_estimate_is_unbiased_whatever_the_weights_are():
    """Every batch that all strata together can draw, with its exact chance."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=N)
    parts = strata(N, K, W)
    for part in parts:
        part.selection.weights = rng.gamma(0.3, size=part.selection.num_samples)  # pyright: ignore
    designs = [
        fast_distribution(part.selection.weights, K // W, 0.4)  # pyright: ignore[reportAttributeAccessIssue]
        for part in parts
    ]
    mean = variance = total = 0.0
    for batch in itertools.product(*(design.items() for design in designs)):
        chance, estimate = 1.0, 0.0
        for part, (subset, own_chance) in zip(parts, batch, strict=True):
            local = np.array(sorted(subset))
            chosen = local * W + part.number
            estimate += np.sum(values[chosen] / (N * part.inclusion_probs()[chosen]))
            chance *= own_chance
        mean, variance, total = mean + chance * estimate, variance + chance * estimate**2, total + chance
    assert total == approx(1.0, abs=1e-12)
    assert mean == approx(values.mean(), abs=1e-12)
    assert variance - mean**2 > 1e-3  # or every batch gave the mean


def test_loss_weights_are_those_of_the_estimate():
    for part in strata(N, K, W):
        part.selection.weights = 1.0 + np.arange(part.selection.num_samples)  # pyright: ignore
        probs = part.inclusion_probs()
        draw = part.draw()
        assert set(draw.indices % W) == {part.number}
        assert draw.probs == approx(probs[draw.indices])
        assert draw.loss_weights == approx(1.0 / (N * probs[draw.indices]))
        assert probs.sum() == approx(K / W)


def test_it_is_a_selection_that_learns_and_continues():
    one, other = (Stratum(CombinatorialBandit(4, 2), N, number=1, num_strata=W) for _ in range(2))
    assert isinstance(one, Selection)
    for _ in range(3):
        one.update(one.draw(), [0.1, 5.0])
    other.load_state_dict(one.state_dict())
    assert np.ptp(one.selection.weights) > 0.0  # pyright: ignore[reportAttributeAccessIssue]
    assert other.draw().indices.tolist() == one.draw().indices.tolist()
    with pytest.raises(ValueError, match="must be saved with number=0, got number=1"):
        Stratum(CombinatorialBandit(4, 2), N, number=0, num_strata=W).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="must choose from the 3 samples of stratum 2 of 3, got .*=4"):
        Stratum(CombinatorialBandit(4, 2), N, number=2, num_strata=W)


def own_part(sharded: bool) -> dict:
    """Train 30 steps, counting what is sent beside DistributedDataParallel's own."""
    calls, original = [], dist.all_gather_into_tensor
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    original = getattr(dist, name)
    setattr(dist, name, lambda output, input, *rest: (calls.append(input.nbytes), original(output, input, *rest))[1])
    with new_trainer(sharded=sharded) as trainer:
        done = train(trainer, 30)
        weights = trainer.selection.strata[0].selection.weights if sharded else None  # pyright: ignore
        return {**done, "sent": calls, "own weights": weights}


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_shards_on_ranks_are_the_stratified_design_in_one_process(world_size):
    stratified = Stratified(strata(SAMPLES, BATCH_SIZE, world_size))
    expected = train_anew(30, "mlp", {"selection": stratified})
    for rank, done in enumerate(launch(world_size, own_part, True)):
        assert done["draws"] == [draw[rank::world_size] for draw in expected["draws"]]
        np.testing.assert_allclose(done["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)
        own = stratified.strata[rank].selection.weights  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_allclose(done["own weights"], own, rtol=1e-9)
        assert np.ptp(own) > 0.1
        assert len(done["sent"]) == (0 if world_size == 1 else 1)  # the check of the first gradients, one number
        assert sum(done["sent"]) <= 8


def test_shared_draws_send_one_message_a_step_of_at_most_32_bytes_a_sample():
    first, *steps = launch(2, own_part, False)[0]["sent"]
    # A ring sends W − 1 parts of K/W samples: here one. An index, what was measured, what arrived, a loss.
    assert set(steps) - {8} == {first} == {32 * BATCH_SIZE // 2 + 8}
    assert len(steps) == 30


def resume(path: str, steps: int) -> dict:
    """Go on from the checkpoint if there is one, for some steps, and save."""
    trainer = new_trainer(sharded=True)
    if os.path.exists(path):
        trainer.load(path)
    done = train(trainer, steps)
    trainer.save(path)
    return {**done, "own weights": trainer.selection.strata[0].selection.weights}  # pyright: ignore


def fail_to_save(folder: str) -> None:
    trainer = new_trainer(sharded=True)
    train(trainer, 1)
    missing = dist.get_rank() == 1
    trainer.save(os.path.join(folder, "missing" if missing else "", "run.pt"))


@pytest.mark.slow
def test_every_rank_saves_its_shard_and_the_run_continues(tmp_path):
    path = str(tmp_path / "run.pt")
    expected = launch(2, own_part, True)
    launch(2, resume, path, 17)
    first = read_checkpoint(path).save_id
    assert sorted(os.listdir(tmp_path)) == ["run.pt", f"run.pt.shard0of2-{first}", f"run.pt.shard1of2-{first}"]
    (tmp_path / f"run.pt.shard0of2-{'f' * 32}").touch()  # as a crash leaves it behind
    (tmp_path / "run.pt.shard0of2-mine").touch()
    continued = launch(2, resume, path, 13)
    save_id = read_checkpoint(path).save_id
    files = ["run.pt", f"run.pt.shard0of2-{save_id}", "run.pt.shard0of2-mine", f"run.pt.shard1of2-{save_id}"]
    assert sorted(os.listdir(tmp_path)) == sorted(files)
    assert {read_checkpoint(tmp_path / name).save_id for name in files if "mine" not in name} == {save_id}
    assert save_id != first
    for one, other in zip(continued, expected, strict=True):
        assert one["draws"] == other["draws"][17:]
        assert one["parameters"].tolist() == other["parameters"].tolist()
        assert one["own weights"].tolist() == other["own weights"].tolist()
    with pytest.raises(ValueError, match="ranks as they were saved by: 2, got 1. .*dcp.save"):
        new_trainer(sharded=True).load(path)


def test_a_rank_that_cannot_write_is_an_error_on_all(tmp_path):
    ours, theirs = launch(2, fail_to_save, str(tmp_path))
    assert isinstance(ours, OSError)
    assert "could not be written by 1 of the other ranks" in str(ours)
    assert isinstance(theirs, OSError)
    (shard,) = os.listdir(tmp_path)
    assert shard.startswith("run.pt.shard0of2-")  # nothing refers to it, and the next save takes it away


def check_and_load(path: str) -> None:
    trainer = new_trainer(sharded=True)
    trainer.save(path, check=True)
    trainer.load(path)


@pytest.mark.slow
def test_shards_of_two_runs_are_not_put_together(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        launch(2, resume, str(folder / "run.pt"), 5)
    before = sorted(os.listdir(ours))
    assert launch(2, check_and_load, str(ours / "run.pt")) == [None, None]
    assert sorted(os.listdir(ours)) == before
    own = next(ours.glob("*.shard1of2-*"))
    foreign = next(theirs.glob("*.shard1of2-*"))
    own.write_bytes(foreign.read_bytes())  # saved at the same step, and renamed
    _, error = launch(2, check_and_load, str(ours / "run.pt"))
    assert isinstance(error, ValueError)
    assert f"must be of the save {own.name[-32:]}, got one of {foreign.name[-32:]}" in str(error)


def test_a_selection_is_that_of_the_rank():
    trainer = AdamCB(mlp(), digits(50), 8, sharded=True, selection=UniformSelection(50, 8))
    assert result(trainer)["readings"]["steps"] == 0
    with pytest.raises(ValueError, match="must draw 8 of the 50 samples of rank 0, because sharded=True, got"):
        AdamCB(mlp(), digits(50), 8, sharded=True, selection=UniformSelection(60, 8))
