"""Where choosing does not pay, the loader measures one batch in 16; training is that of shuffled batches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import AdaptiveLoader, QueueBandit
from adamcb.training._feedback_queue import FeedbackQueue

N, K = 320, 4


class Counting:
    """An observer that counts the batches that were drawn and the batches that were learned from."""

    def __init__(self) -> None:
        self.draws = self.scores = 0

    def note_draw(self, draw) -> None:
        self.draws += 1

    def note_scores(self, draw, scores) -> None:
        self.scores += 1


def train(loss_of, scores: str, epochs: int) -> tuple[Counting, torch.Tensor]:
    """Train on vectors of length 1; return what was counted, and the parameters."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(N, 5, generator=generator))
    y = (x[:, 0] > 0.0) * 2.0 - 1.0
    model, counting = nn.Linear(5, 1, bias=False), Counting()
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    selection = QueueBandit(N, K, generator=torch.Generator().manual_seed(1))
    with AdaptiveLoader(
        model, TensorDataset(x, y), K, selection=selection, scores=scores, observers=(counting,)
    ) as loader:
        for _ in range(epochs):
            for inputs, signs in loader:
                optimizer.zero_grad()
                loader.weigh(loss_of(model(inputs).squeeze(1) * signs)).backward()
                optimizer.step()
    return counting, model.weight.detach()


@pytest.mark.parametrize("scores", ["exact", "last-layer", "losses"])
def test_equal_norms_are_measured_for_50_batches_and_then_once_in_16(scores):
    loss_of = (lambda margins: -margins) if scores != "losses" else (lambda margins: 1.0 + 0.0 * margins)
    counting, weight = train(loss_of, scores, epochs=4)
    assert counting.draws == 4 * N // K
    rest = range(51, counting.draws + 1)
    assert counting.scores == 50 + sum(number % 16 == 0 for number in rest)
    assert weight.isfinite().all()


def test_norms_that_differ_are_always_measured():
    counting, _ = train(lambda margins: (0.2 - margins).clamp(min=0.0), "exact", epochs=4)
    assert counting.scores == counting.draws


def test_a_batch_that_is_not_measured_still_has_its_loss_checked():
    calls = []

    def loss_of(margins):
        calls.append(None)
        return -margins * (float("nan") if len(calls) == 70 else 1.0)

    with pytest.raises(FloatingPointError, match="loss of every sample must be finite"):
        train(loss_of, "last-layer", epochs=2)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_batch_that_is_not_measured_tells_nothing_of_a_scaled_loss(scaled):
    """Whether to look for overflows is known from the last batch that was measured."""
    draw, feedback = QueueBandit(N, K).draw(), FeedbackQueue()
    arrived = torch.from_numpy(draw.loss_weights.copy()) * (1024.0 if scaled else 1.0)
    feedback.send(draw, measured=torch.ones(K), arrived=arrived)
    feedback.send(draw, measured=None, losses=torch.ones(K))
    for _ in range(2):
        assert feedback.due(0) is not None
        assert feedback.is_scaled == scaled
