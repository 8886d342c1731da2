"""The peers of batch selection, each with one call that draws K of n samples and feeds back on them."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from adamcb.selection import CombinatorialBandit, depround
from tests.reference.selection import inclusion_probs

EXPLORATION = 0.4


def adamcb_step(n: int, k: int) -> Callable[[], object]:
    """Ours: draw and update, as training calls them, with the paper's feedback."""
    generator = torch.Generator().manual_seed(0)
    bandit = CombinatorialBandit(n, k, exploration=EXPLORATION, feedback="proof", gate=None, generator=generator)
    scores = np.random.default_rng(0).random((64, k))
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        bandit.update(bandit.draw(), scores[count % 64])

    return step


def textbook_step(n: int, k: int) -> Callable[[], object]:
    """Algorithms 2, 6 and 3 over all n samples, DepRound as a Python loop."""
    weights = np.random.default_rng(0).uniform(0.5, 1.0, size=n)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        probs, _ = inclusion_probs(weights, k, EXPLORATION)
        chosen = depround(probs * (k / probs.sum()), generator=generator)
        loss = np.zeros(n)
        loss[chosen] = 0.9 / probs[chosen]
        np.multiply(weights, np.exp(-k * EXPLORATION / n * loss), out=weights)

    return step


def numpy_step(n: int, k: int) -> Callable[[], object]:
    """`Generator.choice(replace=False, p=…)`: sequential sampling, whose inclusion probabilities are not p."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 1.0, size=n)

    def step() -> None:
        weights[rng.choice(n, size=k, replace=False, p=weights / weights.sum())] *= 0.999

    return step


def multinomial_step(n: int, k: int) -> Callable[[], object] | None:
    """`torch.multinomial(replacement=False)`, which stops at 2²⁴ samples."""
    if n > 2**24:
        return None
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(n, generator=generator) * 0.5 + 0.5

    def step() -> None:
        weights[torch.multinomial(weights, k, replacement=False, generator=generator)] *= 0.999

    return step


def torchrl_step(n: int, k: int) -> Callable[[], object] | None:
    """Torchrl's prioritized sampler: a sum tree and a minimum tree in C++, draws with replacement."""
    if not torchrl_loads():
        return None
    from torchrl.data.replay_buffers import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    storage = LazyTensorStorage(n, device="cpu")
    storage.set(slice(0, n), torch.zeros(n, dtype=torch.uint8))
    sampler = PrioritizedSampler(n, 1.0, 1.0, eps=0.0)
    for first in range(0, n, 10**6):
        indices = torch.arange(first, min(n, first + 10**6))
        sampler.update_priority(indices, torch.rand(len(indices)) * 0.5 + 0.5)

    def step() -> None:
        indices, _ = sampler.sample(storage, k)
        sampler.update_priority(indices, torch.rand(k) * 0.5 + 0.5)

    return step


def torchrl_loads() -> bool:
    """Import torchrl's C++ trees. Where its binary was built for another torch, build the sources that it ships."""
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.origin is None:
        logging.warning("torchrl is not installed: `make bench` installs it. Skipped.")
        return False
    if "torchrl._torchrl" in sys.modules:
        return True
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="torchrl|tensordict")
    try:
        import torchrl._torchrl  # noqa: F401
    except ImportError:
        from torch.utils import cpp_extension

        logging.warning("torchrl's binary is for another torch: compiling its C++ sources, once (a minute or two).")
        sources = Path(spec.origin).parent / "csrc"
        files = [str(sources / name) for name in ("pybind.cpp", "utils.cpp")]
        sys.modules["torchrl._torchrl"] = cpp_extension.load("_torchrl", files, extra_cflags=["-O3"])
    return True


PEERS: dict[str, Callable[[int, int], Callable[[], object] | None]] = {
    "adamcb": adamcb_step,
    "textbook DepRound": textbook_step,
    "numpy choice": numpy_step,
    "torch.multinomial": multinomial_step,
    "torchrl": torchrl_step,
}
# Beyond these sizes a single step takes half a minute or more.
LARGEST = {"textbook DepRound": 10**6, "numpy choice": 10**8}
