"""`AdamCB` whose optimizers a framework steps: it learns the same, steps nothing, and saves the choosing alone."""

import numpy as np
import pytest
import torch

from adamcb import AdamCB
from tests.integrations.problem import BATCH_SIZE, train_set, weights_of
from tests.training.problem import losses_of, mlp

MODEL = torch.float64


def external() -> tuple[AdamCB, torch.optim.Optimizer]:
    model = mlp(dtype=MODEL)
    return AdamCB(model, train_set(), BATCH_SIZE, optimizer="external"), torch.optim.Adam(model.parameters(), lr=0.01)


def drive(trainer: AdamCB, optimizer: torch.optim.Optimizer) -> None:
    """Be the framework, for the rest of an epoch."""
    for x, y in trainer:
        optimizer.zero_grad()
        trainer.weigh(losses_of(trainer.model, x, y)).backward()
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.update()
        assert all(map(torch.equal, before, trainer.model.parameters()))
        optimizer.step()


def test_it_learns_what_it_would_learn_with_the_optimizer():
    trainer, optimizer = external()
    drive(trainer, optimizer)
    model = mlp(dtype=MODEL)
    other = AdamCB(model, train_set(), BATCH_SIZE, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    for x, y in other:
        other.step(losses_of(model, x, y))
    np.testing.assert_array_equal(weights_of(trainer), weights_of(other))
    assert all(map(torch.equal, trainer.model.parameters(), model.parameters()))


def test_a_state_is_that_of_the_choosing_alone():
    trainer, optimizer = external()
    drive(trainer, optimizer)
    state = trainer.state_dict()
    assert state["model"] is None
    assert state["generators"] is None
    other, _ = external()
    generator = torch.get_rng_state()
    other.load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), generator)
    np.testing.assert_array_equal(other.selection.draw().indices, trainer.selection.draw().indices)
    with pytest.raises(ValueError, match="saved with a model if this trainer has optimizers"):
        AdamCB(mlp(dtype=MODEL), train_set(), BATCH_SIZE, optimizer=[optimizer]).load_state_dict(
            {**state, "optimizers": [{"kind": "Adam", "state": optimizer.state_dict()}]}
        )


def test_a_state_can_be_saved_while_a_framework_has_batches_in_hand():
    trainer, _ = external()
    next(iter(trainer))
    assert trainer.state_dict()["loader"]["position"] == 1
