"""torchdata's StatefulDataLoader behind a BanditLoader: exact resuming, datasets with a state of their own included."""

import io
import sys

import pytest
import torch
from torch.utils.data import Dataset

from adamcb import AdamCB, BanditLoader, CombinatorialBandit
from tests.training.problem import digits, eager, losses_of, mlp

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
N, K = 41, 4
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Counting(Dataset):
    """Samples that hold how many were read before, in this worker: a state, as augmentations and caches have."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read += 1
        return index, self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def make(num_workers, seed=0, **options):
    bandit = CombinatorialBandit(N, K, gate=None, generator=torch.Generator().manual_seed(seed))
    return bandit, BanditLoader(Counting(), bandit, num_workers=num_workers, stateful=True, **options)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def train(bandit, loader, epochs, save_at=()):
    """Return what each batch was, and the states saved after some of them."""
    seen, states = [], {}
    for _ in range(epochs):
        for batch in loader:
            index, read = batch
            assert index.tolist() == batch.draw.indices.tolist()
            seen.append((index.tolist(), read.tolist(), batch.draw.probs.tolist()))
            bandit.update(batch.draw, 1.0 + batch.draw.indices % 7)
            if len(seen) in save_at:
                states[len(seen)] = through_a_file({"bandit": bandit.state_dict(), "loader": loader.state_dict()})
    return seen, states


@WORKERS
def test_a_resumed_run_is_the_undisturbed_one(num_workers):
    batches = N // K
    # The first batch, the middle, the last of an epoch, and the second epoch.
    expected, states = train(*make(num_workers), epochs=2, save_at=(1, 5, batches, batches + 3))
    for position, state in states.items():
        bandit, loader = make(num_workers, seed=9)
        bandit.load_state_dict(state["bandit"])
        loader.load_state_dict(state["loader"])
        resumed, _ = train(bandit, loader, epochs=2 if position <= batches else 1)
        assert resumed == expected[position:]


@WORKERS
def test_it_loads_what_the_plain_loader_loads(num_workers):
    stateful, _ = train(*make(num_workers), epochs=2)
    bandit = CombinatorialBandit(N, K, gate=None, generator=torch.Generator().manual_seed(0))
    plain, _ = train(bandit, BanditLoader(Counting(), bandit, num_workers=num_workers), epochs=2)
    assert stateful == plain


def test_a_loaded_state_can_be_saved_again_before_use():
    _, states = train(*make(2), epochs=1, save_at=(3,))
    _, loader = make(2)
    loader.load_state_dict(states[3]["loader"])
    again = through_a_file(loader.state_dict())
    assert again["workers"] == states[3]["loader"]["workers"]
    assert [entry["number"] for entry in again["pending"]] == [3, 4, 5, 6]


def bytes_of(state) -> int:
    torch.save(state, file := io.BytesIO())
    return file.tell()


def test_no_step_copies_what_grows_with_the_dataset():
    sizes = []
    for n in (1_000, 100_000):
        bandit = CombinatorialBandit(n, K, generator=torch.Generator().manual_seed(0))
        bandit.state_dict = lambda: pytest.fail("the weights were copied")  # pyright: ignore[reportAttributeAccessIssue]
        loader = BanditLoader(range(n), bandit, num_workers=1, stateful=True)
        batches = iter(loader)
        next(batches)
        sizes.append(bytes_of(loader.state_dict()))
        del batches
    assert abs(sizes[1] - sizes[0]) < 64  # a few digits


def test_another_number_of_workers_is_refused():
    _, states = train(*make(2), epochs=1, save_at=(3,))
    _, loader = make(0)
    with pytest.raises(ValueError, match="must be saved with num_workers=0, got num_workers=2"):
        loader.load_state_dict(states[3]["loader"])


def test_a_trainer_takes_it_and_its_checkpoint_continues_exactly(tmp_path):
    def new() -> AdamCB:
        options: dict = {"num_workers": 2, "multiprocessing_context": "fork", "stateful": True}
        return AdamCB(mlp(), digits(200), 16, selection=eager(200, 16), **options)

    def go(trainer: AdamCB, save_at: int | None = None) -> list[float]:
        losses = []
        for x, y in trainer:
            losses.append(trainer.step(losses_of(trainer.model, x, y)).item())
            if len(losses) == save_at:
                trainer.save(tmp_path / "run.pt")
        return losses

    expected = go(new(), save_at=5)
    resumed = new()
    resumed.load(tmp_path / "run.pt")
    assert go(resumed) == expected[5:]


def test_without_torchdata_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[torchdata\]" in a clone'):
        make(0)
