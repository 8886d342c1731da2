"""Ctrl-C and SIGTERM at any moment: one line, the right exit code, no traceback, nobody left behind."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from adamcb.lab.commands import cli
from adamcb.lab.signals import STOPPED, Bell, Terminated, raising
from tests.lab.commands import SMALL, processes_of_group, start, wait_until
from tests.patience import patience


@pytest.fixture(autouse=True)
def _sigint_as_in_a_terminal():
    """Started in the background, a shell's child ignores Ctrl-C, and so would everything here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@contextlib.contextmanager
def sigterm_handled():
    """As in the command line, where both signals have a handler."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", CODES)
def test_a_bell_rings_instead_of_raising_and_the_second_signal_raises(number):
    error = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    with sigterm_handled():
        before = signal.getsignal(number)
        with Bell() as bell:
            bell.answer()  # nothing to say yet
            assert wait([bell.heard], timeout=0) == []
            os.kill(os.getpid(), number)
            assert wait([bell.heard], timeout=patience(60.0)) == [bell.heard]
            with pytest.raises(error):
                bell.answer()
            with pytest.raises(error):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) == before


def test_a_bell_leaves_signals_alone_that_nobody_handles():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with Bell():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_what_is_started_unreachable_does_not_hear_signals(tmp_path):
    """In a new process, where nobody has started others before."""
    code = """
import multiprocessing, signal
from adamcb.lab.signals import unreachable

def tell():
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())) == [signal.SIGINT, signal.SIGTERM], flush=True)

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process = multiprocessing.get_context("spawn").Process(target=tell)
    with unreachable():
        process.start()
    process.join()
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    started = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert started.stdout == "True\nset()\n"


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_command_that_is_interrupted_says_so_in_one_line(number, code, monkeypatch, capsys):
    def run(*_) -> None:
        with raising():
            os.kill(os.getpid(), number)

    monkeypatch.setattr(cli, "run_inspect", run)
    with sigterm_handled():
        assert cli.main(["inspect", "anything"]) == code
    assert capsys.readouterr().err == f"{STOPPED}\n"


def stop(process: subprocess.Popen[str], number: signal.Signals, *, everybody: bool) -> None:
    """Send a signal, and look at how the command ends; a worker may have to come up before it hears of it."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if everybody else os.kill)(process.pid, number)
    printed = process.communicate()[1]
    assert "Traceback" not in printed
    assert "Exception ignored" not in printed
    if process.returncode:  # or it was done already
        assert process.returncode == CODES[number], printed
        assert printed.strip().endswith(STOPPED)
    wait_until(lambda: not processes_of_group(process.pid))


@pytest.mark.parametrize("number", CODES)
def test_a_command_that_has_just_begun_ends_cleanly(number, tmp_path):
    """In the middle of its imports: numba is there, the lab not yet."""
    process = start("compare", *SMALL, "--out", tmp_path)
    wait_until(lambda: "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text())
    stop(process, number, everybody=False)
    assert process.returncode == CODES[number]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
def test_a_command_may_be_stopped_at_any_moment(seed, tmp_path):
    """A moment is when the command has had so many processor seconds, from 0.1 on: start-up, training, or the page."""
    rng = random.Random(seed)
    process = start("compare", *SMALL, "--out", tmp_path, "--checkpoint-seconds", "0.05")
    moment = 0.1 * 200.0 ** rng.random()
    wait_until(lambda: process.poll() is not None or sum(processes_of_group(process.pid).values()) >= moment)
    stop(process, rng.choice(list(CODES)), everybody=rng.random() < 0.5)
