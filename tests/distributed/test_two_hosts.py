"""Two hosts, each a network of its own: one is cut off in the middle of a step, and the job goes on afterwards."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.problem import train_anew
from tests.patience import patience

pytestmark = pytest.mark.slow
ADDRESSES = ("10.213.77.1", "10.213.77.2")
STEPS, CUT_AT = 22, 13
TIMEOUT_SECONDS = 20.0  # of the process group, on an idle machine


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Two network namespaces with a cable between them."""

    def __init__(self) -> None:
        self.names = [f"adamcb{os.getpid()}{side}" for side in "ab"]
        self.cables = [f"acb{os.getpid() % 100000}{side}" for side in "ab"]

    def build(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1])
        for name, cable, address in zip(self.names, self.cables, ADDRESSES, strict=True):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", "lo", "up")
        self.plug("up")

    def plug(self, how: str) -> None:
        for name, cable in zip(self.names, self.cables, strict=True):
            ip("-n", name, "link", "set", cable, how)

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def start(self, host: int, log: Path, *arguments: object) -> subprocess.Popen:
        """Start torchrun on a host; both meet at the first one's address."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29471", "--rdzv-id", "adamcb"]
        place = ["--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", ADDRESSES[host], "--max-restarts", "0"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": self.cables[host], "OMP_NUM_THREADS": "1"}
        command = ["ip", "netns", "exec", self.names[host], *torchrun, *meeting, *place]
        with log.open("w") as output:
            return subprocess.Popen(
                [*command, "-m", "tests.distributed.two_hosts", *map(str, arguments)],
                cwd=Path(__file__).parents[2],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("the command `ip` is missing")
    made = Hosts()
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted: {error.stderr.decode().strip()}")
        yield made
    finally:
        made.remove()


def wait_for(file: Path, job: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + patience(240.0)
    while not file.exists():
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def stop(jobs: list[subprocess.Popen]) -> None:
    for job in jobs:
        job.terminate()
    for job in jobs:
        try:
            job.wait(30)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def test_a_host_that_is_cut_off_ends_the_other_and_the_job_goes_on_when_started_again(hosts, tmp_path):
    logs, timeout = [tmp_path / f"log-{host}" for host in (0, 1)], min(120.0, patience(TIMEOUT_SECONDS))
    jobs = [hosts.start(host, logs[host], tmp_path, timeout, STEPS, CUT_AT) for host in (0, 1)]
    try:
        wait_for(tmp_path / "ready", jobs[0], logs[0])
        hosts.plug("down")
        (tmp_path / "cut").touch()
        code = jobs[0].wait(timeout + patience(100.0))
    finally:
        stop(jobs)
    assert code != 0
    assert "imed out" in (tmp_path / "failed-0").read_text()  # the gather of the step
    waited = (tmp_path / "failed-0").stat().st_mtime - (tmp_path / "cut").stat().st_mtime
    assert waited < timeout + patience(5.0)
    assert "RuntimeError" in logs[0].read_text()
    assert not (tmp_path / "parameters-0.npy").exists()

    hosts.plug("up")
    logs = [tmp_path / f"log-again-{host}" for host in (0, 1)]
    jobs = [hosts.start(host, logs[host], tmp_path, timeout, STEPS) for host in (0, 1)]
    try:
        for job, log in zip(jobs, logs, strict=True):
            assert job.wait(patience(280.0)) == 0, log.read_text()
    finally:
        stop(jobs)
    expected = train_anew(STEPS)["parameters"]
    for rank in (0, 1):
        assert (tmp_path / f"resumed-{rank}").read_text() == "10"
        np.testing.assert_allclose(np.load(tmp_path / f"parameters-{rank}.npy"), expected, rtol=0.0, atol=1e-9)
