"""The MNIST example runs, learns, and differs from plain PyTorch in a few lines."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of(name: str) -> list[str]:
    text = (EXAMPLES / name).read_text()
    return [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]  # without the docstring


def test_it_differs_from_plain_pytorch_in_at_most_eight_lines():
    plain, ours = lines_of("mnist_plain.py"), lines_of("mnist.py")
    changes = [op for op in difflib.SequenceMatcher(None, plain, ours).get_opcodes() if op[0] != "equal"]
    assert sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in changes) <= 8
    new = [line for _, _, _, j1, j2 in changes for line in ours[j1:j2]]
    assert new == [line for line in ours if line.endswith("# adamcb")]
    assert 3 <= len(new) <= 8


@pytest.mark.parametrize("name", ["mnist_plain.py", "mnist.py"])
def test_it_runs_and_learns(name):
    command = [sys.executable, EXAMPLES / name, "--dataset", "digits", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    accuracies = [float(value) for value in re.findall(r"accuracy: \d+/359 \((\d+\.\d)%\)", done.stdout)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 75.0
