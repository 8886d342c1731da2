"""Prioritized replay as a selection: K distinct transitions a batch, with exact probabilities, scored by TD errors.

The environment is the blind cliffwalk of Schaul et al. (2016): in each of `--states` states one of two actions goes on,
the other ends the episode, and the only reward is at the far end. A random walk gets there once in 2^states episodes,
so nearly all transitions in the buffer are failures. Q-learning replays them, uniformly or by priority, until its
values are right.

    python examples/replay.py [--states 14] [--seeds 3]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
import torch

from adamcb import Draw, WeightedSelection

DISCOUNT, LR, BATCH_SIZE = 0.9, 0.25, 16


class PrioritizedReplay:
    """A buffer of transitions, drawn with probability proportional to (|TD error| + eps)^alpha.

    Args:
        transitions: Arrays of one length: what is in the buffer at the start, at least K transitions.
        capacity: How many transitions fit; the oldest are replaced.
        alpha: 0: uniform; 1: proportional to the TD error.
        beta: How much of the bias of unequal probabilities the weights take back; 1: all of it.
    """

    def __init__(self, transitions, capacity, batch_size, *, alpha=0.6, beta=0.5, eps=1e-3, generator=None):
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self.size = self.place = len(transitions[0])
        self.memory: list[Any] = [np.zeros((capacity, *part.shape[1:]), dtype=part.dtype) for part in transitions]
        for column, part in zip(self.memory, transitions, strict=True):
            column[: self.size] = part
        priorities = np.zeros(capacity)  # a place that is empty is never drawn
        priorities[: self.size] = self.highest = 1.0
        self.selection = WeightedSelection(priorities, batch_size, generator=generator)

    def add(self, *transition) -> None:
        """Put a transition in, with the highest priority so far: nobody knows its TD error yet."""
        place = self.place % len(self.memory[0])
        for column, value in zip(self.memory, transition, strict=True):
            column[place] = value
        self.selection.set_weights([place], [self.highest])
        self.place, self.size = place + 1, max(self.size, place + 1)

    def sample(self) -> tuple[Draw, list[Any], np.ndarray]:
        """Return the draw, the transitions, and the weight of each in the loss."""
        draw = self.selection.draw()
        weights = (1.0 / draw.probs) ** self.beta
        return draw, [column[draw.indices] for column in self.memory], weights / weights.max()

    def learn(self, draw, errors) -> None:
        """Take the TD errors of a draw as its new priorities."""
        priorities = (np.abs(errors) + self.eps) ** self.alpha
        self.highest = max(self.highest, priorities.max())
        self.selection.set_weights(draw.indices, priorities)


def walk(states: int, episodes: int, seed: int):
    """Return state, action, reward, next state and end of random walks, and of one that reaches the reward."""
    rng, rows = np.random.default_rng(seed), []
    right = np.arange(states) % 2  # which action goes on
    for episode in range(episodes):
        for state in range(states):
            action = right[state] if episode == 0 else rng.integers(2)
            goes_on, last = action == right[state], state == states - 1
            rows.append((state, action, float(goes_on and last), min(state + 1, states - 1), not goes_on or last))
            if not goes_on:
                break
    return [np.array(column) for column in zip(*rows, strict=True)], right


def batches_until_learned(states: int, seed: int, alpha: float, *, episodes: int = 2000, most: int = 20_000) -> int:
    """Return after how many batches all Q values are right to 0.05 of the smallest one's size."""
    transitions, right = walk(states, episodes, seed)
    generator = torch.Generator().manual_seed(seed)
    capacity = len(transitions[0])
    replay = PrioritizedReplay(transitions, capacity, BATCH_SIZE, alpha=alpha, generator=generator)
    values, truth = np.zeros((states, 2)), np.zeros((states, 2))
    truth[np.arange(states), right] = DISCOUNT ** np.arange(states - 1, -1, -1)
    for batch in range(1, most + 1):
        draw, (state, action, reward, following, end), weights = replay.sample()
        errors = reward + DISCOUNT * values[following].max(1) * ~end - values[state, action]
        np.add.at(values, (state, action), LR * weights * errors)
        replay.learn(draw, errors)
        if np.abs(values - truth).max() < 0.05 * DISCOUNT**states:
            return batch
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description="Prioritized replay on the blind cliffwalk.")
    parser.add_argument("--states", type=int, default=14)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"blind cliffwalk of {options.states} states, batches of {BATCH_SIZE} until Q is right; median of seeds")
    for name, alpha in (("uniform", 0.0), ("prioritized", 0.6)):
        needed = [batches_until_learned(options.states, seed, alpha) for seed in range(options.seeds)]
        print(f"  {name:12} {statistics.median(needed):7.0f} batches")


if __name__ == "__main__":
    main()
