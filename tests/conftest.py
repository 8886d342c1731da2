import pytest
import torch

# The tests share the cores out among themselves.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20250115)
