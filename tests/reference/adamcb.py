"""AdamCB by the book: Algorithm 1 line by line, a backward pass for every sample, all n probabilities at every step.

Random numbers are given from outside, so that two runs can share them. The gradient estimate is the unbiased one (see
docs/paper.md), and the weights change as in the proof.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from tests.reference.adamx import SlowAdamX
from tests.reference.depround import ordered_draw
from tests.reference.selection import SlowCombinatorialBandit, SlowReplacementBandit


class SlowTraining:
    """What AdamCB and AdamBS share: lines 3 to 8 of Algorithm 1. `draw` is line 2, and a subclass's."""

    def __init__(self, model: nn.Module, loss_fn, data, **adamx) -> None:
        self.model, self.loss_fn = copy.deepcopy(model), loss_fn
        self.x, self.y = data
        self.adamx = SlowAdamX(self.parameters(), **adamx)

    def parameters(self) -> list[float]:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).tolist()

    def gradient(self, i: int) -> np.ndarray:
        """∇ℓ(θ; xᵢ, yᵢ), by a backward pass of its own."""
        self.model.zero_grad()
        self.loss_fn(self.model(self.x[i : i + 1]), self.y[i : i + 1]).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()]
        return torch.cat([gradient.flatten() for gradient in gradients]).numpy()

    def step(self, *random_numbers) -> list[int]:
        """Make one step and return the batch."""
        chosen, probs, expected_counts = self.draw(*random_numbers)
        gradients = [self.gradient(i) for i in chosen]
        estimate = sum(g / (len(self.x) * p) for g, p in zip(gradients, expected_counts, strict=True))
        self.adamx.step(np.asarray(estimate).tolist())
        self.bandit.update(chosen, probs, [float(np.sqrt(np.sum(g**2))) for g in gradients])
        nn.utils.vector_to_parameters(torch.tensor(self.adamx.theta, dtype=self.x.dtype), self.model.parameters())
        return chosen

    bandit: SlowCombinatorialBandit | SlowReplacementBandit

    def draw(self, *random_numbers) -> tuple[list[int], list[float], list[float]]:
        """Return the batch, the probabilities in the bandit's sense, and how often each is expected in a batch."""
        raise NotImplementedError

    def weights(self) -> np.ndarray:
        """Return the bandit's weights, in sum 1."""
        raise NotImplementedError


class SlowAdamCB(SlowTraining):
    """Algorithms 1, 2 and 7, with DepRound in a given order; reshuffled batches while the gate is closed."""

    def __init__(self, model, loss_fn, data, batch_size, exploration, feedback="proof", **adamx) -> None:
        super().__init__(model, loss_fn, data, **adamx)
        self.bandit: SlowCombinatorialBandit = SlowCombinatorialBandit(len(self.x), batch_size, exploration, feedback)

    def draw(self, order: np.ndarray, uniforms: np.ndarray, drawn: int) -> tuple[list[int], list[float], list[float]]:
        probs, _ = self.bandit.draw_probs(drawn)
        if self.bandit.draws_by_weight(drawn):
            chosen = [int(order[i]) for i in ordered_draw(probs[order], uniforms)]
        else:
            chosen = order[drawn * self.bandit.k :][: self.bandit.k].tolist()
        return chosen, probs[chosen].tolist(), probs[chosen].tolist()

    def weights(self) -> np.ndarray:
        weights = np.exp(self.bandit.log_w - self.bandit.log_w.max())
        return weights / weights.sum()


class SlowAdamBS(SlowTraining):
    """Algorithms 1, 4 and 5: K independent draws from probabilities that sum to 1."""

    def __init__(self, model, loss_fn, data, batch_size, exploration, **adamx) -> None:
        super().__init__(model, loss_fn, data, **adamx)
        self.bandit: SlowReplacementBandit = SlowReplacementBandit(len(self.x), batch_size, exploration, "corrected")

    def draw(self, uniforms: np.ndarray) -> tuple[list[int], list[float], list[float]]:
        probs = self.bandit.probs()
        ends = np.cumsum(probs)
        chosen = [min(int(np.searchsorted(ends, u, side="right")), len(probs) - 1) for u in uniforms]
        return chosen, probs[chosen].tolist(), (self.bandit.k * probs[chosen]).tolist()

    def weights(self) -> np.ndarray:
        return self.bandit.w / self.bandit.w.sum()
