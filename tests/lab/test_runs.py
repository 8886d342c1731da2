"""One run: stopped anywhere, it goes on to the same numbers."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx

from adamcb import AdamCB, AdamX
from adamcb._seeds import derived_seed
from adamcb.lab import Task
from adamcb.lab.errors import Interrupted
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import DEFAULT_METHODS, METHODS, Method, get_method
from adamcb.lab.results import read_json, write_json
from adamcb.lab.runs import Progress, Run, evaluation, run
from adamcb.lab.runs.building import build_optimizer, build_trainer, initial_model
from adamcb.lab.runs.evaluation import evaluate
from adamcb.lab.runs.watch import Watch
from adamcb.lab.seeds import SELECTION
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task
from adamcb.lab.tasks.schedules import SCHEDULES
from adamcb.training import Meter

DROPOUT_MODEL = """
from torch import nn

def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, num_classes))
"""


@pytest.fixture(autouse=True)
def one_thread():
    """As in the lab's own workers: threads would wait for each other longer than such small sums take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", fraction=0.2)


@pytest.fixture(scope="module")
def dropout_model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(DROPOUT_MODEL)
    return f"{path}:model"


def look_always(monkeypatch) -> None:
    for module in (run, evaluation):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def small_experiment(model: str, **changes) -> Experiment:
    return Experiment(**{"model": model, "epochs": 2, "batch_size": 60, "schedule": "cosine", "lr": 0.01, **changes})


def outcome(folder: Path, method: str) -> dict:
    """Return what a run left, without the seconds."""
    done = read_json(folder / ".runs" / f"{method}-seed1" / "done.json")
    for row in (*done["results"], *done.get("between", [])):
        del row["seconds"], row["wall_seconds"]
    for kind in ("samples", "chosen"):
        path = folder / kind / f"{method}-seed1.npz"
        if path.is_file():
            with np.load(path) as arrays:
                done |= {f"{kind} {name}": arrays[name].astype(str).tolist() for name in arrays.files}
    return done


def make_run(experiment, method, seed, data, folder, report=lambda progress: None) -> Run:
    return Run(experiment, method, seed, image_task(data, experiment.model), folder, report)


def train(experiment, method, data, folder, report=lambda progress: None) -> dict:
    make_run(experiment, method, 1, data, folder, report).train()
    return outcome(folder, method)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["adam", "adambs-original", "adamcb-paper", "adamcb"])
def test_a_run_stopped_at_any_look_ends_with_the_same_numbers(
    method, every, data, dropout_model, tmp_path, monkeypatch
):
    """Looks are after every step and every evaluated batch here; the run is stopped at each of them in turn."""
    look_always(monkeypatch)
    experiment = small_experiment(dropout_model)
    looks = itertools.count(1)
    undisturbed = train(experiment, method, data, tmp_path / "whole", lambda progress: next(looks) and None)
    assert len(undisturbed["results"]) == len(undisturbed["selection"]) == 3
    assert undisturbed["results"][-1]["step"] == 8
    for stop_at in range(1, next(looks), every):
        folder = tmp_path / f"stopped{stop_at}"
        calls = itertools.count(1)

        def stop(progress: Progress, calls=calls, stop_at=stop_at) -> None:
            if next(calls) == stop_at:
                raise Interrupted("now")

        with pytest.raises(Interrupted):
            train(experiment, method, data, folder, stop)
        torch.rand(3)  # whatever else happened in between
        assert train(experiment, method, data, folder) == undisturbed
        assert sorted(path.name for path in (folder / ".runs" / f"{method}-seed1").iterdir()) == ["done.json"]


def test_rows_that_the_checkpoint_does_not_know_of_are_dropped(data, dropout_model, tmp_path, monkeypatch):
    """Killed between writing its rows and writing its checkpoint, a run has rows of its future."""
    look_always(monkeypatch)
    experiment = small_experiment(dropout_model)
    undisturbed = train(experiment, "adamcb-paper", data, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.step == 2:
            raise Interrupted("now")

    with pytest.raises(Interrupted):
        train(experiment, "adamcb-paper", data, tmp_path / "killed", stop)
    rows = [{**row, "seconds": 1.0, "wall_seconds": 1.0} for row in undisturbed["results"]]
    ahead = {"results": rows, "selection": undisturbed["selection"], "seconds": 1e6, "wall_seconds": 1e6}
    write_json(tmp_path / "killed" / ".runs" / "adamcb-paper-seed1" / "progress.json", ahead)
    run = make_run(experiment, "adamcb-paper", 1, data, tmp_path / "killed", lambda progress: None)
    run.train()
    assert outcome(tmp_path / "killed", "adamcb-paper") == undisturbed
    assert run.seconds < 1e6  # the clock is the checkpoint's, too


def test_seconds_go_on_from_where_they_were(data, dropout_model, tmp_path, monkeypatch):
    look_always(monkeypatch)
    spent = []

    def stop(progress: Progress) -> None:
        if progress.step == 6:
            raise Interrupted("now")

    run = make_run(small_experiment(dropout_model), "adam", 1, data, tmp_path, stop)
    with pytest.raises(Interrupted):
        run.train()
    spent.append(run.seconds)
    run = make_run(small_experiment(dropout_model), "adam", 1, data, tmp_path, lambda progress: None)
    run.train()
    assert run.seconds > spent[0] > run.rows.results[1]["seconds"] > run.rows.results[0]["seconds"] == 0.0


def test_evaluation_is_off_the_clock_and_on_all_data(data, dropout_model, tmp_path, monkeypatch):
    run = make_run(small_experiment(dropout_model, epochs=1), "adam", 1, data, tmp_path, lambda progress: None)
    run.train()
    assert run.rows.results[0]["seconds"] == 0.0
    run.model.eval()
    for split, samples in (("train", data.train), ("test", data.test)):
        images, labels = samples.tensors
        logits = run.model(images)
        assert run.rows.results[1][f"{split}_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        assert run.rows.results[1][f"{split}_accuracy"] == pytest.approx(accuracy, rel=1e-12)
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 37)
    again = evaluate(run.task, run.model, data.train, torch.device("cpu"), lambda: None)
    expected = {"loss": run.rows.results[1]["train_loss"], "accuracy": run.rows.results[1]["train_accuracy"]}
    assert again == pytest.approx(expected, rel=1e-6)


def test_convolutions_are_evaluated_as_the_model_computes_them(data):
    """They are evaluated in another memory layout than they are trained in."""
    task = image_task(data, "cnn")
    model = initial_model(task, 0, "cpu")
    images, labels = data.train.tensors
    with torch.no_grad():
        logits = model(images)
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    expected = {"loss": F.cross_entropy(logits, labels).item(), "accuracy": accuracy}
    assert evaluate(task, model, data.train, torch.device("cpu"), lambda: None) == pytest.approx(expected, rel=1e-5)


WARM_UP = """
import importlib, pkgutil
import numpy as np
import adamcb.selection
from adamcb import CombinatorialBandit
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import METHODS
from adamcb.lab.runs.building import default_selection, warm_up
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task
from adamcb.lab.tasks.schedules import SCHEDULES

names = [f"adamcb.selection.{module.name}" for module in pkgutil.iter_modules(adamcb.selection.__path__)]
rooms = [importlib.import_module(name) for name in names]
kernels = {kernel for room in rooms for kernel in vars(room).values() if hasattr(kernel, "signatures")}
kernels = sorted(kernels, key=lambda kernel: (kernel.__module__, kernel.__name__))
task = image_task(load_dataset("digits"), "logistic")
warm_up(Experiment(batch_size=8).completed(task), METHODS["adamcb"], task)
print([kernel.signatures for kernel in kernels])
for selection in (CombinatorialBandit(100, 8), CombinatorialBandit(100, 8, gate=None), default_selection(100, 8)):
    for _ in range(15):
        selection.update(selection.draw(), np.ones(8))
print([kernel.signatures for kernel in kernels])
"""


@pytest.mark.slow
def test_a_warm_up_leaves_nothing_to_compile_whether_the_gate_is_closed_or_open():
    found = subprocess.run([sys.executable, "-c", WARM_UP], capture_output=True, text=True, check=True)
    before, after = found.stdout.splitlines()
    assert before == after


def test_a_run_that_diverges_says_so_and_keeps_what_it_had(data, dropout_model, tmp_path):
    experiment = small_experiment(dropout_model, lr=1e30, schedule="constant")
    done = train(experiment, "adam", data, tmp_path)
    assert "step" in done["diverged"]
    assert len(done["results"]) < 3
    assert all(math.isfinite(row["train_loss"]) for row in done["results"])


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("inverse-sqrt", [1.0, 2**-0.5, 3**-0.5, 0.5]),
        ("cosine", [1.0, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
    ],
)
def test_every_step_has_the_learning_rate_of_its_schedule(schedule, factors, data, dropout_model, tmp_path):
    experiment = small_experiment(dropout_model, schedule=schedule, epochs=1)
    run = make_run(experiment, "adam", 0, data, tmp_path, lambda progress: None)
    seen = []
    optimizer = run.trainer.optimizer
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    run.train()
    assert seen == pytest.approx([0.01 * factor for factor in factors])


@pytest.mark.parametrize("exploration", [None, 1.0])
def test_the_method_adamcb_is_adamcb_as_it_comes(exploration, data):
    """With the same optimizer, parameters and random numbers, `AdamCB` and the lab's method make the same steps."""
    task = image_task(data, "mlp", optimizer="adamx")
    experiment = Experiment(batch_size=60, exploration=exploration).completed(task)
    models = [initial_model(task, 0, "cpu") for _ in range(2)]
    default = AdamCB(models[0], data.train, 60, seed=derived_seed(0, SELECTION))
    ours = build_trainer(experiment, METHODS["adamcb"], task, models[1], 0)
    assert type(ours.selection) is type(default.selection)
    for trainer, model in ((default, models[0]), (ours, models[1])):
        for _ in range(8):
            for inputs, labels in trainer:
                trainer.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    same = all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert same == (exploration is None)
    found = [vars(trainer.selection)["exploration"] for trainer in (ours, default)]
    assert found[0] == (exploration or found[1])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_has_the_settings_of_table_2(method: Method, data):
    task = image_task(data, "logistic")
    optimizer = build_optimizer(Experiment().completed(task), method, task, task.model())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (1e-3, (0.9, 0.999), 1e-8)
    assert group["weight_decay"] == 0
    if isinstance(optimizer, AdamX):
        assert group["beta1_decay"] == 1 - 1e-8
        assert group["bias_correction"] == (method.name in ("adamcb", "adamcb-smaller", "adamx"))
    if method.name.startswith("adambs") or method.name in ("adamcb-paper", "adamcb-listing"):
        assert (method.exploration, method.scores) == (0.4, "exact")


def test_an_optimizer_replaces_all_but_those_that_a_method_is_about(data):
    task = image_task(data, "logistic", optimizer="adamw", weight_decay=0.1)
    experiment = Experiment().completed(task)
    kinds = {}
    for name in ("adam", "adamcb", "infobatch", "adamx", "adamcb-paper"):
        optimizer = build_optimizer(experiment, get_method(name), task, task.model())
        kinds[name] = type(optimizer).__name__
        assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert kinds == {
        "adam": "AdamW",
        "adamcb": "AdamW",
        "infobatch": "AdamW",
        "adamx": "AdamX",
        "adamcb-paper": "AdamX",
    }


@pytest.mark.parametrize("kind", ["a task", "a model on a dataset"])
def test_all_methods_step_with_the_same_optimizer(data, kind):
    task = image_task(data, "logistic")
    if kind == "a task":
        task = Task("plain", task.model, data.train, data.test)
    experiment = Experiment().completed(task)
    kinds = {name: type(build_optimizer(experiment, get_method(name), task, task.model())) for name in DEFAULT_METHODS}
    assert set(kinds.values()) == {torch.optim.Adam}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 or later")
def test_muon_steps_matrices_and_adamw_the_rest_under_one_schedule(data, tmp_path):
    task = image_task(data, "logistic", optimizer="muon", lr=0.02, weight_decay=0.1, schedule="cosine", epochs=2)
    experiment = Experiment(methods=("adam",), seeds=1).completed(task)
    optimizers = build_optimizer(experiment, get_method("adam"), task, task.model())
    assert isinstance(optimizers, tuple)
    assert [type(one).__name__ for one in optimizers] == ["Muon", "AdamW"]
    assert [parameter.dim() for one in optimizers for parameter in one.param_groups[0]["params"]] == [2, 1]
    assert [one.param_groups[0]["weight_decay"] for one in optimizers] == [0.1, 0.1]
    run = Run(experiment, "adam", 0, task, tmp_path, lambda progress: None)
    run.train()
    rates = [one.param_groups[0]["lr"] for one in run.trainer.optimizers]
    last = 0.02 * SCHEDULES["cosine"](run.total_steps - 1, run.total_steps)
    assert rates == approx([last, last])
    assert run.rows.results[-1]["train_loss"] < 0.95 * run.rows.results[0]["train_loss"]


def test_methods_differ_only_where_their_names_say():
    weight = torch.zeros(2, requires_grad=True)
    kinds = {}
    for name, method in METHODS.items():
        optimizer = method.optimizer([weight], lr=1e-3) if method.optimizer else None
        form = None
        if method.selection is not None:
            settings = {"exploration": 0.3} if method.takes_exploration else {}
            selection = method.selection(100, 10, **settings, generator=torch.Generator().manual_seed(0))
            form = str(getattr(selection, "form", getattr(selection, "feedback", type(selection).__name__)))
            assert getattr(selection, "exploration", 0.3) == 0.3
        kinds[name] = (form, optimizer and type(optimizer).__name__, optimizer and optimizer.defaults["amsgrad"])
    assert kinds == {
        "adam": ("UniformSelection", None, None),
        "amsgrad": ("UniformSelection", "Adam", True),
        "adamx": ("UniformSelection", "AdamX", True),
        "adamx-paper": ("UniformSelection", "AdamX", True),
        "adambs": ("corrected", "AdamX", True),
        "adambs-original": ("original", "Adam", False),
        "adamcb-paper": ("ProofFeedback(max_norm=None)", "AdamX", True),
        "adamcb-listing": ("ListingFeedback(max_norm=None)", "AdamX", True),
        "adamcb": (None, None, None),
        "adamcb-smaller": (None, None, None),
        "small-batches": ("SmallBatches", None, None),
    }


@pytest.mark.parametrize(("old", "new"), [("adamcb-scale-free", "adamcb"), ("adambs-corrected", "adambs")])
def test_names_of_the_past_tell_the_new_one(old, new):
    with pytest.raises(ValueError, match=f"'{old}' is called '{new}' now"):
        get_method(old)


def test_a_watch_reads_as_the_meter_does_and_counts_batches_of_any_size(data):
    """The log, replayed after the epoch, says what the trainer's own meter said along the way."""
    task = image_task(data, "mlp")
    experiment = Experiment(batch_size=60, min_batch_size=8, scores="exact").completed(task)
    model, watch = initial_model(task, 0, "cpu"), Watch(len(data.train), 60)
    trainer = build_trainer(experiment, METHODS["adamcb"], task, model, 0, observers=(watch,))
    meter = Meter.of(trainer.selection)
    counts, sizes = np.zeros(len(data.train), dtype=int), []
    for epoch in range(6):
        if epoch == 5:
            trainer.observers.append(meter)
            watch.read(trainer.selection)
        for batch in trainer:
            np.add.at(counts, batch.draw.indices, 1)
            sizes.append(len(batch.draw))
            inputs, labels = batch
            trainer.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    again = Watch(len(data.train), 60)
    again.load_state_dict(watch.state_dict())
    readings, now = watch.read(trainer.selection), meter.as_dict()
    for name in ("second_moment", "effective_sample_size", "coverage", "largest_weight"):
        assert readings[name] == pytest.approx(now[name], rel=1e-12)
    assert again.read(trainer.selection) == readings
    for one in (watch, again):
        assert (one.num_draws, one.samples_drawn) == (len(sizes), sum(sizes))
    assert min(sizes) < 60 == max(sizes)
    table = trainer.samples()
    assert table.count.tolist() == counts[table.index].tolist()
    relative = trainer.selection.inclusion_probs() * len(data.train) / 60
    assert readings["prob_q50"] == pytest.approx(float(np.median(relative)))
    assert readings["prob_min"] == pytest.approx(relative.min())
    assert readings["prob_max"] == pytest.approx(relative.max())
