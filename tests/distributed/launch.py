"""Real processes of a process group, on this machine."""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.patience import patience

# Ranks are forked from a process that has done the imports, which take longer than the tests: DistributedDataParallel
# alone imports torch's compiler.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["adamcb.lab.tasks.datasets", "sklearn.datasets", "torch._dynamo", "torch.distributed.fsdp", "numba.typed"]
)
# A launch takes seconds on an idle machine: nothing but a hang takes so long.
HANG_SECONDS = 120.0
# A rank that gets it writes down where it is.
TELL = signal.SIGUSR1


def launch(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call function(*args) in every rank of a new process group, and return the results by rank.

    A rank that raised returns its exception. One that was killed returns its (negative) exit code.

    Raises:
        TimeoutError: If a rank hangs. The message says of every rank what it returned, or where it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _launch(world_size, _be_rank, os.path.join(folder, "store"), function, args)


def launch_as_torchrun(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Do the same, but leave the process group to the function, which finds what torchrun puts into the environment.

    As under torchrun, no rank has the store, and nobody guesses a port that is free.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    return _launch(world_size, _be_process, store.port, function, args)


def _launch(world_size: int, be: Callable[..., None], store: Any, function: Callable[..., Any], args: tuple) -> list:
    limit = time.monotonic() + patience(HANG_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [PROCESSES.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            PROCESSES.Process(target=_run, args=(folder, be, rank, world_size, store, sender, function, args))
            for rank, (_, sender) in enumerate(pairs)
        ]
        for process, (_, sender) in zip(ranks, pairs, strict=True):
            process.start()
            sender.close()
        try:
            results = [_hear(receiver, process, limit) for (receiver, _), process in zip(pairs, ranks, strict=True)]
            for process in ranks:
                process.join(max(0.0, limit - time.monotonic()))
            if any(process.is_alive() for process in ranks):
                raise TimeoutError(_tell_all(results, ranks, Path(folder)))
            return results
        finally:
            for process in ranks:
                process.kill()


def _hear(receiver: Any, process: Any, limit: float) -> Any:
    """Return what a rank returned; None if it says nothing until the limit."""
    if not wait([receiver], timeout=max(0.0, limit - time.monotonic())):
        return None
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return process.exitcode


def _tell_all(results: list[Any], ranks: list[Any], folder: Path) -> str:
    """Say of every rank what it returned, and where it is if it has not ended."""
    lines = ["A rank hangs."]
    for rank, (result, process) in enumerate(zip(results, ranks, strict=True)):
        lines.append(f"Rank {rank} returned {result!r}, exit code {process.exitcode}.")
        if process.is_alive():
            os.kill(process.pid, TELL)
            process.join(2.0)  # to write
            lines.append((folder / str(rank)).read_text())
    return "\n".join(lines)


def _run(folder: str, be: Callable[..., None], rank: int, *rest: Any) -> None:
    with open(os.path.join(folder, str(rank)), "w") as stacks:
        faulthandler.register(TELL, file=stacks, all_threads=True)
        be(rank, *rest)


def _be_rank(
    rank: int, world_size: int, store: str, sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=patience(HANG_SECONDS)),
    )
    result = _call(function, args)
    sender.send(result)
    sender.close()
    if not isinstance(result, Exception):
        dist.barrier()  # or the first to leave would break the connections of the others
        dist.destroy_process_group()


def _be_process(
    rank: int, world_size: int, port: int, sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sender.send(_call(function, args))
    sender.close()


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)(f"{error}\n{traceback.format_exc()}")
