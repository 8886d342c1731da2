"""What holds for all tests: each is a function of its seed, whatever ran before it."""

from __future__ import annotations

import os
import random
import zlib

import hypothesis
import numpy as np
import pytest
import torch

# The tests share the cores out among themselves.
torch.set_num_threads(1)

# The same examples in every run, however slow the machine is.
hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None)
hypothesis.settings.load_profile("seeded")

_SEED = 20250115


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run three tests on two cores: many wait for processes that they have started."""
    return max(3 * (os.cpu_count() or 1) // 2, 1)


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _numbers() -> tuple[float, float]:
    """Return the next number of NumPy and of torch. Libraries draw from Python's generator while they are imported."""
    return torch.rand(()).item(), float(np.random.rand())


def pytest_collection(session: pytest.Session) -> None:
    """Seed the global generators, so that `pytest_collection_finish` can tell whether somebody drew from them."""
    _seed_globals(_SEED)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse randomness at collection: what it draws would depend on which files are collected, and in what order."""
    followed = _numbers()
    _seed_globals(_SEED)
    if followed != _numbers():
        raise pytest.UsageError("A test file draws from a global generator when it is imported.")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> None:
    """Seed every fixture that outlives a test: which test comes first must not matter."""
    if fixturedef.scope != "function":
        _seed_globals(zlib.crc32(fixturedef.argname.encode()))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    _seed_globals(_SEED)


@pytest.fixture
def generator() -> torch.Generator:
    """Return a generator of the test's own."""
    return torch.Generator().manual_seed(_SEED)
