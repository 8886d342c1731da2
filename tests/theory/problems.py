"""Small convex problems for the tests of the theory room."""

import torch

from adamcb.theory import LogisticProblem


def clouds(num_samples: int = 30, features: int = 2, classes: int = 3, penalty: float = 0.01) -> LogisticProblem:
    """Overlapping Gaussian clouds, one of them far away, so that norms differ."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(num_samples) % classes
    centers = 1.5 * torch.randn(classes, features, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_samples, features, generator=generator, dtype=torch.float64)
    return LogisticProblem(centers[labels] + noise + 0.3, labels, penalty=penalty)
