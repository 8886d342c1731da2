"""Small problems for the tests of the theory room, and all draws of a small bandit with their chances."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from adamcb.selection import CombinatorialBandit, ProofFeedback
from adamcb.theory import LogisticProblem
from tests.reference.depround import textbook_distribution


def clouds(num_samples: int = 30, features: int = 2, classes: int = 3, penalty: float = 0.01) -> LogisticProblem:
    """Overlapping Gaussian clouds, one of them far away, so that norms differ."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(num_samples) % classes
    centers = 1.5 * torch.randn(classes, features, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_samples, features, generator=generator, dtype=torch.float64)
    return LogisticProblem(centers[labels] + noise + 0.3, labels, penalty=penalty)


def paper_bandit(n: int, k: int, gamma: float, *, max_norm: float | None = None, seed: int = 3) -> CombinatorialBandit:
    """The paper's bandit, in the form of its proof: Δ log w = −(Kγ/n)·ℓ/p."""
    generator = torch.Generator().manual_seed(seed)
    return CombinatorialBandit(
        n, k, exploration=gamma, feedback=ProofFeedback(max_norm), gate=None, generator=generator
    )


def scale_free_bandit(n: int, k: int, gamma: float, *, seed: int = 3) -> CombinatorialBandit:
    """Ours, without its gate."""
    generator = torch.Generator().manual_seed(seed)
    return CombinatorialBandit(n, k, exploration=gamma, gate=None, generator=generator)


def probs_of(weights: np.ndarray, k: int, gamma: float) -> np.ndarray:
    """Line 11 of Algorithm 2, no sample capped."""
    return k * ((1.0 - gamma) * weights / weights.sum() + gamma / len(weights))


def all_draws(probs: np.ndarray, *, every_order: bool = False) -> Iterator[tuple[list[int], float]]:
    """Every batch that DepRound can draw, with its chance; `every_order`: the order is random, too."""
    orders = list(itertools.permutations(range(len(probs)))) if every_order else [tuple(range(len(probs)))]
    for order in orders:
        for batch, chance in textbook_distribution(probs[list(order)]).items():
            yield sorted(order[i] for i in batch), chance / len(orders)
