"""The examples of the frameworks run, and Lightning's differs from the plain one in five lines at most."""

import difflib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of(name: str) -> list[str]:
    text = (EXAMPLES / name).read_text()
    return [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]  # without the docstring


def test_lightning_needs_at_most_five_changed_lines():
    plain, ours = lines_of("lightning_plain.py"), lines_of("lightning_digits.py")
    changes = [op for op in difflib.SequenceMatcher(None, plain, ours).get_opcodes() if op[0] != "equal"]
    assert sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in changes) <= 5
    new = [line for _, _, _, j1, j2 in changes for line in ours[j1:j2]]
    assert new == [line for line in ours if line.endswith("# adamcb")]


def run(name: str, *options: str) -> None:
    """Run an example here: starting Python and importing a framework takes longer than all of them."""
    framework = name.split("_")[0]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework's own
        patch.chdir(tempfile.gettempdir())
        patch.setattr(sys, "argv", [name, *options])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_lightning_learns_the_digits(capsys):
    run("lightning_digits.py", "--epochs", "2")
    assert float(re.findall(r"accuracy: (\d+\.\d)%", capsys.readouterr().out)[0]) > 80.0


def test_a_gpt_learns_the_texts_of_pydoc(capsys):
    run("transformers_gpt.py", "--samples", "256", "--width", "16")
    output = capsys.readouterr().out
    assert float(re.findall(r"mean loss: (\d+\.\d+)", output)[0]) < 5.5  # that of guessing is log 256 = 5.55
    assert "variance_reduction" in output


def assert_learned(output: str) -> None:
    header, *rows = [line.split(",") for line in output.splitlines()]
    assert len(rows) == 2
    assert header[:3] == ["epoch", "accuracy", "steps"]
    assert float(rows[-1][1]) > 0.8


def test_a_loop_with_accelerate_learns_the_digits(capsys):
    run("accelerate_digits.py", "--epochs", "2")
    assert_learned(capsys.readouterr().out)


@pytest.mark.slow
def test_torchrun_starts_it_in_two_processes(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, str(EXAMPLES / "accelerate_digits.py"), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert_learned(done.stdout)
