from collections.abc import Iterator

import pytest

from tests.lab.commands import runs_here


@pytest.fixture
def here() -> Iterator[None]:
    """Do runs in this process."""
    with runs_here():
        yield
