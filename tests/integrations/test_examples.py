"""The examples run. Loops of one's own differ from the plain ones in two lines, Lightning's in five at most."""

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


PAIRS = ("mnist", "nanogpt", "gradscaler", "accelerate_loop")


@pytest.mark.parametrize("name", PAIRS)
def test_two_changed_lines_are_all(name):
    plain, ours = lines_of(f"{name}_plain.py"), lines_of(f"{name}.py")
    code = [[line for line in lines if not line.startswith(("import ", "from "))] for lines in (plain, ours)]
    changes = [op for op in difflib.SequenceMatcher(None, *code).get_opcodes() if op[0] != "equal"]
    assert [(op[0], op[2] - op[1], op[4] - op[3]) for op in changes] == [("replace", 1, 1)] * 2
    new = [line for *_, j1, j2 in changes for line in code[1][j1:j2]]
    assert new == [line for line in ours if line.endswith("# adamcb")]
    assert [line for line in ours if line.startswith("import adamcb")] == ["import adamcb"]


def run(name: str, *options: str) -> None:
    """Run an example here: starting Python and importing a framework takes longer than all of them."""
    framework = name.split("_")[0]
    if framework in ("lightning", "transformers", "accelerate") and importlib.util.find_spec(framework) is None:
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


def last_accuracy(output: str) -> float:
    return float(re.findall(r"accuracy\D*(\d+\.\d)%", output)[-1])


@pytest.mark.parametrize("name", ["accelerate_loop", "accelerate_loop_plain", "gradscaler", "gradscaler_plain"])
def test_loops_learn_the_digits(name, capsys):
    run(f"{name}.py", "--epochs", "2")
    assert last_accuracy(capsys.readouterr().out) > 70.0


@pytest.mark.parametrize("name", ["nanogpt", "nanogpt_plain"])
def test_the_loop_of_nanogpt_learns_a_text(name, capsys):
    sizes = ("--samples", "128", "--width", "16", "--layers", "1", "--length", "32", "--batch-size", "8")
    run(f"{name}.py", *sizes, "--steps", "20", "--warmup", "4", "--lr", "0.01")
    assert float(re.findall(r"mean loss: (\d+\.\d+)", capsys.readouterr().out)[0]) < 4.0


@pytest.mark.slow
def test_torchrun_starts_it_in_two_processes(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, str(EXAMPLES / "accelerate_loop.py"), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert last_accuracy(done.stdout) > 70.0
