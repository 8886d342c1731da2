"""Checkpoints and death in several processes: a run continues on any number of ranks, and ends where it would have."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import launch
from tests.distributed.problem import new_trainer, result, train, train_anew
from tests.training.problem import losses_of

STEPS = 40


def go_on(path: str, steps: int) -> dict:
    """Load the checkpoint if there is one, train, and save where only rank 0 does."""
    trainer = new_trainer(num_workers=1, multiprocessing_context="fork", feedback_delay=1)
    if os.path.exists(path):
        trainer.load(path)
    done = train(trainer, steps)
    if not dist.is_initialized() or dist.get_rank() == 0:
        trainer.save(path)
    return done


@pytest.mark.parametrize(
    "ranks", [(2, 1), *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in [(4, 1, 2), (1, 4), (2, 2)])]
)
def test_a_checkpoint_of_rank_0_continues_on_any_number_of_ranks(tmp_path, ranks):
    """In the middle of an epoch, with draws made ahead for the workers and feedback on its way."""
    options = {"num_workers": 1, "multiprocessing_context": "fork", "feedback_delay": 1}
    expected = train_anew(STEPS, "mlp", options)
    path, each = str(tmp_path / "run.pt"), STEPS // len(ranks)
    drawn: list = []
    for part, world_size in enumerate(ranks):
        steps = each if part < len(ranks) - 1 else STEPS - len(drawn)
        done = launch(world_size, go_on, path, steps)[0]
        drawn += done["draws"]
    assert drawn == expected["draws"]
    np.testing.assert_allclose(done["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(done["weights"], expected["weights"], rtol=1e-9)
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def train_until_killed(path: str, die_at: int | None) -> dict:
    """Save after every third step on every rank; rank 1 dies between the backward pass of all and learning."""
    trainer = new_trainer()
    if os.path.exists(path):
        trainer.load(path)
    while trainer.meter.steps < STEPS:
        for x, y in trainer:
            trainer.optimizer.zero_grad()
            trainer.weigh(losses_of(trainer.model, x, y)).backward()
            if trainer.meter.steps == die_at:
                die_when_the_other_is_done(Path(f"{path}.backward"))
            trainer.learn()
            trainer.optimizer.step()
            if trainer.meter.steps % 3 == 0:
                trainer.save(path)
            if trainer.meter.steps == STEPS:
                break
    return result(trainer)


def die_when_the_other_is_done(sign: Path) -> None:
    """Rank 0 gives a sign and goes on; rank 1 waits for it and dies, so that the other's backward pass is complete."""
    if dist.get_rank() == 0:
        sign.touch()
        return
    while not sign.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_job_continues_from_the_last_checkpoint(tmp_path):
    path = tmp_path / "run.pt"
    undisturbed = train_anew(STEPS)
    survivor, killed = launch(2, train_until_killed, str(path), 17)
    assert killed == -signal.SIGKILL
    assert isinstance(survivor, RuntimeError)  # of the gather that it was in, not of a hang
    assert "gather" in str(survivor)
    assert saved_steps(path) == 15
    for rank in launch(2, train_until_killed, str(path), None):
        np.testing.assert_allclose(rank["parameters"], undisturbed["parameters"], rtol=0.0, atol=1e-9)
        np.testing.assert_allclose(rank["weights"], undisturbed["weights"], rtol=1e-9)


def saved_steps(path: Path) -> int:
    return torch.load(path, weights_only=True)["state"]["meter"]["steps"]


def numbers_after_loading(path: str) -> tuple[list, list]:
    """Return what the global generators give before a save and after a load, from a file and from this rank's own."""
    torch.manual_seed(dist.get_rank())
    trainer = new_trainer()
    train(trainer, 1)
    trainer.save(path)
    own = trainer.state_dict()
    dist.barrier()
    following = torch.rand(3).tolist()
    trainer.load_state_dict(own)
    assert torch.rand(3).tolist() == following
    loaded = []
    for _ in range(2):
        trainer.load(path)
        loaded.append([torch.rand(3).tolist(), np.random.rand(3).tolist()])
    assert loaded[0] == loaded[1]
    return following, loaded[0]


def test_dropout_goes_on_exactly_where_it_was_saved_and_differs_between_ranks(tmp_path):
    ours, theirs = launch(2, numbers_after_loading, str(tmp_path / "run.pt"))
    assert ours[1][0] == ours[0]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert one != other
