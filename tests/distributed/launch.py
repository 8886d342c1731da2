"""Real processes of a process group, on this machine."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
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
# Generous, since the machine may be busy: nothing but a hang takes so long.
TIMEOUT_SECONDS = patience(120.0)


def launch(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call function(*args) in every rank of a new process group, and return the results by rank.

    A rank that raised returns its exception. One that was killed returns its (negative) exit code.
    """
    return _launch(world_size, _be_rank, function, args)


def launch_as_torchrun(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Do the same, but leave the process group to the function, which finds what torchrun puts into the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return _launch(world_size, _be_process, function, (port, *args))


def _launch(world_size: int, target: Callable[..., None], function: Callable[..., Any], args: tuple) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        pairs = [PROCESSES.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            PROCESSES.Process(target=target, args=(rank, world_size, store, sender, function, args))
            for rank, (_, sender) in enumerate(pairs)
        ]
        for process, (_, sender) in zip(ranks, pairs, strict=True):
            process.start()
            sender.close()
        try:
            results = [_hear(receiver, process) for (receiver, _), process in zip(pairs, ranks, strict=True)]
            for process in ranks:
                process.join(TIMEOUT_SECONDS)
            return results
        finally:
            for process in ranks:
                process.kill()


def _hear(receiver: Any, process: Any) -> Any:
    if not wait([receiver], timeout=TIMEOUT_SECONDS + 60):
        raise TimeoutError("A rank hangs.")
    try:
        return receiver.recv()
    except EOFError:
        process.join(TIMEOUT_SECONDS)
        return process.exitcode


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
        timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS),
    )
    result = _call(function, args)
    sender.send(result)
    sender.close()
    if not isinstance(result, Exception):
        dist.barrier()  # or the first to leave would break the connections of the others
        dist.destroy_process_group()


def _be_process(
    rank: int, world_size: int, store: str, sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    port, *rest = args
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sender.send(_call(function, tuple(rest)))
    sender.close()


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)(f"{error}\n{traceback.format_exc()}")
