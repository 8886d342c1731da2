"""A forward pass of the model in another thread changes nothing for the training in this one."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adamcb import AdamCB, QueueBandit
from tests.training.problem import digits, losses_of

WIDTH = 8


class Between(nn.Module):
    """Does something in the middle of the next forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.todo: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        todo, self.todo = self.todo, None
        if todo is not None:
            todo()
        return x


def scores_of(scores: str, when: str | None, grad: bool = False) -> list[list[float]]:
    """Train three batches, with a forward pass in another thread at some moment of each, and return the scores."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), between := Between(), nn.ReLU(), nn.Linear(WIDTH, 10))
    heard: list[list[float]] = []

    class Observer:
        def note_draw(self, draw):
            pass

        def note_scores(self, draw, scores):
            heard.append(scores.tolist())

    def forward() -> None:
        with torch.set_grad_enabled(grad):
            model(torch.ones(5, 1, 8, 8))

    def in_another_thread() -> None:
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()

    selection = QueueBandit(100, 8, generator=torch.Generator().manual_seed(0))
    with AdamCB(model, digits(100), 8, scores=scores, selection=selection, observers=[Observer()]) as trainer:
        for x, y in trainer:
            if when == "before":
                in_another_thread()
            between.todo = in_another_thread if when == "during" else None
            losses = losses_of(model, x, y)
            if when == "after":
                in_another_thread()
            trainer.step(losses)
            if len(heard) == 3:
                return heard
    raise AssertionError("an epoch has more batches than that")


@pytest.mark.parametrize("scores", ["last-layer", "exact"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_forward_pass_of_another_thread_is_not_taken_for_ours(scores, grad, when):
    assert scores_of(scores, when, grad) == scores_of(scores, None)
