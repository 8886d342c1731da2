"""The examples of the frameworks run, and Lightning's differs from the plain one in five lines at most."""

import difflib
import importlib.util
import os
import re
import subprocess
import sys
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


def run(name: str, *options: str, command: tuple[str, ...] = (), folder: Path) -> str:
    if importlib.util.find_spec(name.split("_")[0]) is None:
        pytest.skip(f"{name.split('_')[0]} is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    whole = [sys.executable, *command, str(EXAMPLES / name), *options]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=280, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lightning_learns_the_digits(tmp_path):
    output = run("lightning_digits.py", "--epochs", "2", folder=tmp_path)
    assert float(re.findall(r"accuracy: (\d+\.\d)%", output)[0]) > 80.0


def test_a_gpt_learns_the_texts_of_pydoc(tmp_path):
    output = run("transformers_gpt.py", "--samples", "256", "--width", "16", folder=tmp_path)
    assert float(re.findall(r"mean loss: (\d+\.\d+)", output)[0]) < 5.5  # that of guessing is log 256 = 5.55
    assert "variance_reduction" in output


def test_accelerate_learns_the_digits_in_two_processes(tmp_path):
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    output = run("accelerate_digits.py", "--epochs", "2", command=command, folder=tmp_path)
    header, *rows = [line.split(",") for line in output.splitlines()]
    assert len(rows) == 2
    assert header[:3] == ["epoch", "accuracy", "steps"]
    assert float(rows[-1][1]) > 0.8
