"""The examples run. Loops of one's own differ from the plain ones in two lines, Lightning's in five at most."""

import argparse
import difflib
import importlib.util
import itertools
import os
import re
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from adamcb import AdamCB
from adamcb.lab.tasks.check import check_task
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.load import load_task

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
    changes = [op for op in difflib.SequenceMatcher(None, code[0], code[1]).get_opcodes() if op[0] != "equal"]
    assert [(op[0], op[2] - op[1], op[4] - op[3]) for op in changes] == [("replace", 1, 1)] * 2
    new = [line for *_, j1, j2 in changes for line in code[1][j1:j2]]
    assert new == [line for line in ours if line.endswith("# adamcb")]
    assert [line for line in ours if line.startswith("import adamcb")] == ["import adamcb"]


def run(name: str, *options: str) -> dict[str, Any]:
    """Run an example here: starting Python and importing a framework takes longer than all of them."""
    framework = name.split("_")[0]
    if framework in ("lightning", "transformers", "accelerate") and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework's own
        patch.chdir(tempfile.gettempdir())
        patch.setattr(sys, "argv", [name, *options])
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def trained(name: str, *options: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model that an example's `main` trained, and the example's own names."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(tempfile.gettempdir())
        patch.setattr(sys, "argv", [name, *options])
        names = runpy.run_path(str(EXAMPLES / name))
        return names["main"](), names


def assert_same_parameters(one: nn.Module, other: nn.Module) -> None:
    for own, expected in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-7)


def test_the_mnist_example_trains_as_adamcb_does():
    model, names = trained("mnist.py", "--dataset", "digits", "--epochs", "2")
    images = load_dataset("digits")
    torch.manual_seed(1)
    twin = names["Net"](images.image_shape[1])
    optimizer = torch.optim.Adadelta(twin.parameters(), lr=1.0)
    with AdamCB(twin, images.train, 64, optimizer=optimizer) as trainer:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
        for _ in range(2):
            twin.train()
            for x, y in trainer:
                trainer.step(F.nll_loss(twin(x), y, reduction="none"))
            # Its loader takes a seed from the generator that dropout draws from.
            names["test"](twin, "cpu", DataLoader(images.test, batch_size=1000))
            schedule.step()
    assert_same_parameters(model, twin)


def test_the_gradscaler_example_trains_as_adamcb_does():
    model, names = trained("gradscaler.py", "--epochs", "1")
    images = load_dataset("digits")
    torch.manual_seed(1)
    twin = names["network"]()
    optimizer = torch.optim.AdamW(twin.parameters(), lr=3e-3)
    with AdamCB(twin, images.train, 64, optimizer=optimizer) as trainer:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(trainer))
        for x, y in trainer:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = twin(x)
            loss = 4096.0 * trainer.weigh(F.cross_entropy(logits.float(), y, reduction="none"))
            loss.backward()
            for parameter in twin.parameters():
                assert parameter.grad is not None
                parameter.grad /= 4096.0
            nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    assert_same_parameters(model, twin)


def test_the_accelerate_example_trains_as_adamcb_does():
    pytest.importorskip("accelerate")
    model, _ = trained("accelerate_loop.py", "--epochs", "1")
    images = load_dataset("digits")
    torch.manual_seed(1)
    layers = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    twin = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
    with AdamCB(twin, images.train, 64, optimizer=optimizer) as trainer:
        for x, y in trainer:
            trainer.optimizer.zero_grad()
            trainer.weigh(F.cross_entropy(twin(x), y, reduction="none")).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            trainer.optimizer.step()
    assert_same_parameters(model, twin)


def test_the_nanogpt_example_trains_as_adamcb_does():
    """It takes the next batch before it goes backward, so scores are learned one batch later."""
    sizes = ("--samples", "64", "--width", "16", "--layers", "1", "--length", "16", "--batch-size", "8")
    model, names = trained("nanogpt.py", *sizes, "--steps", "6", "--warmup", "2")
    torch.manual_seed(1)
    train_set, twin = names["sequences"](16, 64), names["GPT"](16, 1, 16)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    args = argparse.Namespace(lr=1e-3, steps=6, warmup=2)
    with AdamCB(twin, train_set, 8, optimizer=optimizer, feedback_delay=1) as trainer:
        batches = itertools.chain.from_iterable(itertools.repeat(trainer))
        for step in range(6):
            optimizer.param_groups[0]["lr"] = names["learning_rate"](step, args)
            optimizer.zero_grad()
            for x, y in itertools.islice(batches, 2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    losses = F.cross_entropy(twin(x).transpose(1, 2), y, reduction="none").mean(1)
                (trainer.weigh(losses) / 2).backward()
                trainer.learn()
            nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            optimizer.step()
    assert_same_parameters(model, twin)


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


@pytest.mark.parametrize("options", [(), ("--plain",)], ids=["chosen", "plain"])
def test_the_example_of_rare_events_learns_on_fewer_samples(options, capsys):
    run("rare_events.py", "--rows", "2560", "--epochs", "6", *options)
    samples, loss = re.findall(r"(\d+) samples, .*, log loss (\S+)", capsys.readouterr().out)[0]
    assert (int(samples) < 12_288) == (not options)  # 6 epochs of 4 batches of 512
    assert float(loss) < 0.2  # 0.69 at the start


def test_the_example_of_an_equation_lowers_its_residual(capsys):
    run("pinn.py", "--points", "1024", "--epochs", "4")
    means = [float(mean) for mean in re.findall(r"residual (\d+\.\d+)", capsys.readouterr().out)]
    assert len(means) == 4
    assert means[-1] < 0.95 * means[0]


def test_the_example_of_a_task_is_one_that_compare_takes():
    task = load_task(f"{EXAMPLES / 'task.py'}:task")
    check_task(task)
    assert list(task.metrics) == ["RMSE"]


@pytest.mark.slow
def test_torchrun_starts_it_in_two_processes(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, str(EXAMPLES / "accelerate_loop.py"), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert last_accuracy(done.stdout) > 70.0
