"""A real training process, killed again and again, ends where one that ran through ends: to the last bit."""

import multiprocessing
import random
import signal
import time
from multiprocessing.connection import wait

import pytest
import torch

from tests.training.problem import plain
from tests.training.resumable import BATCH_SIZE, EPOCHS, SAMPLES, STEPS, run

# Each life is a new process, forked from one that has done the imports, which take longer than the training.
LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload(["tests.training.resumable", "sklearn.datasets"])


def live(folder, num_workers: int, kill_after: int | None = None, delay: float = 0.0) -> int:
    """Run the training in a process of its own; kill it some steps after it started. Return the last step heard of."""
    receiver, sender = LIVES.Pipe(duplex=False)
    process = LIVES.Process(target=run, args=(folder, num_workers, sender))
    process.start()
    sender.close()
    heard: list[int] = []  # step counts; the first tells where this life began
    while kill_after is None or not heard or heard[-1] - heard[0] < kill_after:
        # Not by the end of the pipe: workers inherit it, and outlive a killed process by seconds.
        if receiver not in wait([receiver, process.sentinel]):
            break
        try:
            heard.append(receiver.recv())
        except EOFError:
            break
    else:
        time.sleep(delay)
        process.kill()
    process.join()
    assert process.exitcode == (0 if kill_after is None else -signal.SIGKILL)
    return heard[-1]


@pytest.mark.parametrize(
    ("num_workers", "kills"), [(2, 3), *(pytest.param(workers, 10, marks=pytest.mark.slow) for workers in (0, 2))]
)
def test_a_killed_and_resumed_run_ends_with_the_same_bits(tmp_path, num_workers, kills):
    through, killed = tmp_path / "through", tmp_path / "killed"
    through.mkdir()
    killed.mkdir()
    live(through, num_workers)
    rng = random.Random(num_workers)
    # About as far as needed for all kills to come before the end; the delay is about two steps, or a save.
    reached = [
        live(killed, num_workers, rng.randrange(STEPS // kills + 4), rng.uniform(0.0, 0.01)) for _ in range(kills)
    ]
    assert STEPS // 3 < max(reached) < STEPS  # the kills are spread over the training, wherever the clock ran
    live(killed, num_workers)
    expected, actual = (torch.load(folder / "result.pt", weights_only=True) for folder in (through, killed))
    assert len(expected["losses"]) == STEPS == EPOCHS * (SAMPLES // BATCH_SIZE)
    assert expected["accuracies"][-1] > 0.8
    assert plain(actual) == plain(expected)
