"""Files that changed after they were written are refused, and nothing is changed by them."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import AdamCB, QueueBandit
from adamcb.training import read_checkpoint, write_checkpoint
from tests.training.problem import losses_of, plain

TRIALS = 1000


def tiny(seed: int = 0) -> AdamCB:
    source = torch.Generator().manual_seed(0)
    dataset = TensorDataset(torch.randn(12, 3, generator=source), torch.arange(12) % 2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(3, 2)
    selection = QueueBandit(12, 2, generator=torch.Generator().manual_seed(seed))
    return AdamCB(model, dataset, 2, selection=selection)


def trained(seed: int = 0) -> AdamCB:
    trainer = tiny(seed)
    for x, y in trainer:
        trainer.step(losses_of(trainer.model, x, y))
    return trainer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def flip(content: bytearray, source: np.random.Generator) -> bytes:
    place = source.integers(len(content))
    content[place] ^= 1 << source.integers(8)
    return bytes(content)


def cut(content: bytearray, source: np.random.Generator) -> bytes:
    return bytes(content[: source.integers(len(content))])


def swap(content: bytearray, source: np.random.Generator) -> bytes:
    """Exchange two blocks of 16 bytes that differ."""
    blocks = [bytes(content[at : at + 16]) for at in range(0, len(content) - 15, 16)]
    while True:
        one, other = source.integers(len(blocks), size=2)
        if blocks[one] != blocks[other]:
            content[16 * one : 16 * one + 16], content[16 * other : 16 * other + 16] = blocks[other], blocks[one]
            return bytes(content)


@pytest.mark.parametrize("damage", [flip, cut, swap])
def test_every_damaged_checkpoint_is_refused_and_nothing_is_changed(
    path, damage: Callable[[bytearray, np.random.Generator], bytes]
):
    trained(1).save(path)
    whole = path.read_bytes()
    live = trained(0)
    before, generator = plain(live.state_dict()), torch.get_rng_state()
    source = np.random.default_rng(17)
    for _ in range(TRIALS):
        path.write_bytes(damage(bytearray(whole), source))
        with pytest.raises(ValueError, match="is damaged, or no checkpoint of adamcb"):
            live.load(path)
    assert plain(live.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), generator)
    path.write_bytes(whole)
    live.load(path)
    assert plain(live.state_dict()) != before


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    trainer = tiny()
    for place in ("/dev/null", tmp_path):
        for check in (True, False):
            with pytest.raises(OSError, match="could not be written: only a regular file may be replaced"):
                trainer.save(place, check=check)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="only a regular file"):
        trainer.save(tmp_path / "pipe")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(OSError, match="only a regular file"):
        trainer.save(link)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_path_that_torch_cannot_open_is_not_taken_for_a_bad_content(tmp_path):
    folder = os.fsdecode(bytes(tmp_path) + b"/\xff")
    os.mkdir(folder)
    with pytest.raises(OSError, match="could not be written: torch opens paths of Unicode characters only"):
        tiny().save(f"{folder}/checkpoint.pt")
    assert not os.listdir(folder)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_permissions_are_kept(path, mode):
    trainer = tiny()
    trainer.save(path)
    path.chmod(mode)
    trainer.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_check_writes_nothing_and_fails_where_a_save_would(path):
    trainer = tiny()
    trainer.save(path, check=True)
    assert not path.exists()
    trainer.save(path)
    whole = path.read_bytes()
    trainer.save(path, check=True)
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(OSError, match="could not be written"):
        trainer.save(path.parent / "nowhere" / "checkpoint.pt", check=True)
    with pytest.raises(TypeError, match="A checkpoint must hold tensors"):
        trainer.save(path, extra=lambda: None, check=True)
    assert list(path.parent.iterdir()) == [path]


WRITER = """
import sys, torch
from adamcb.training import write_checkpoint
number = float(sys.argv[2])
for _ in range(25):
    write_checkpoint(sys.argv[1], {"number": number, "data": torch.full((20_000,), number)})
"""


def test_two_processes_that_save_under_one_name_do_not_mix(path):
    write_checkpoint(path, {"number": 0.0, "data": torch.zeros(20_000)})
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(number)]) for number in (1, 2)]
    seen, reads = set(), 0
    try:
        while any(writer.poll() is None for writer in writers):
            state = read_checkpoint(path).state  # raises if it is damaged
            assert (state["data"] == state["number"]).all()
            seen.add(state["number"])
            reads += 1
    finally:
        codes = [writer.wait() for writer in writers]
    assert codes == [0, 0]
    assert reads > 10
    assert seen & {1.0, 2.0}
    assert list(path.parent.iterdir()) == [path]
