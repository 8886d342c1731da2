"""Tasks: what they are refused for, their metrics and schedules, and comparing one from Python and from the shell."""

import html
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx
from rich.console import Console
from sklearn import metrics as sklearn_metrics
from torch import nn
from torch.utils.data import TensorDataset

from adamcb.lab import LabError, Method, Metric, Task, compare, metrics
from adamcb.lab.commands.cli import main
from adamcb.lab.commands.compare import Options, run_comparison
from adamcb.lab.experiment import Experiment
from adamcb.lab.tasks.check import check_task
from adamcb.lab.tasks.images import flip_and_shift
from adamcb.lab.tasks.protein import read_protein
from adamcb.lab.tasks.schedules import SCHEDULES
from adamcb.lab.tasks.shakespeare import GPT, read_text, sequence_loss

TASK_FILE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from adamcb.lab import Task, metrics

def build():
    return nn.Linear(3, 1)

def loss(model, batch):
    inputs, targets = batch
    return (model(inputs).squeeze(1) - targets).square()

def predict(model, batch):
    return model(batch[0]).squeeze(1), batch[1]

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(120, 3, generator=generator)
targets = inputs @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(120, generator=generator)
splits = (TensorDataset(inputs[:90], targets[:90]), TensorDataset(inputs[90:], targets[90:]))
task = Task("line", build, *splits, loss=loss, predict=predict, metrics={"RMSE": metrics.rmse}, batch_size=10, epochs=2)
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def task_file(tmp_path) -> Path:
    (tmp_path / "mine.py").write_text(TASK_FILE)
    return tmp_path / "mine.py"


def samples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    return TensorDataset(torch.randn(count, 3, generator=generator), torch.arange(count) % 2)


def other_labels(count: int) -> TensorDataset:
    return TensorDataset(samples(count).tensors[0], torch.full((count,), 2))


def make(**changes) -> Task:
    settings = {"model": lambda: nn.Linear(3, 2), "train": samples(20), "test": samples(8), "batch_size": 4}
    return Task("mine", **{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": samples(0)}, r"`test` must not be empty, got len\(test\)=0"),
        ({"train": iter([])}, "`train` must be map-style"),
        ({"model": nn.Identity()}, "`model` of a task must be a function that builds a model, got a model"),
        ({"model": None}, "`model` of a task must be a function"),
        ({"loss": 3}, "`loss` of a task must be a function, got a int"),
        ({"metrics": ["accuracy"]}, "`metrics` of a task must be a dict"),
        ({"metrics": {"loss": len}}, "names other than 'loss'"),
        ({"metrics": {"LOSS": len}}, "names other than 'loss'"),
        ({"metrics": {"a b": len, "A-b": len}}, "no two are the same but for marks and capitals, got 'A-b'"),
        ({"metrics": {"a,b": len}}, "must have names of letters, digits, spaces and .*, got 'a,b'"),
        ({"metrics": {"a\nb": len}}, r"must have names of letters, digits, spaces and .*, got 'a\\nb'"),
        ({"metrics": {"": len}}, "must have names of letters, digits, spaces and .*, got ''"),
        ({"metrics": {5: len}}, "must have names of letters, digits, spaces and .*, got 5"),
        ({"metrics": {"mine": 3}}, r"`metrics\['mine'\]` of a task must be a function"),
        ({"schedule": "linear"}, "`schedule` must be one of"),
        ({"optimizer": "lbfgs"}, "`optimizer` must be one of"),
        ({"lr": math.nan}, "`lr` must be"),
        (
            {"scores": 3},
            "`scores` must be one of 'exact', 'last-layer', 'losses', or a function of the losses, got scores=3",
        ),
        ({"scores": "abc"}, "`scores` must be one of 'exact', 'last-layer', 'losses', got scores='abc'"),
        ({"epochs": 0}, "`epochs` must be"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_task_is_refused_when_it_is_made(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**changes)


def test_names_of_metrics_that_people_use_are_accepted():
    names = ["ROC AUC", "F1", "top-5 accuracy", "recall@10", "error (%)", "log loss", "R²", "précision"]
    assert list(make(metrics=dict.fromkeys(names, len)).metrics) == names


def reduced(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def detached(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none").detach()


def expanded(model: nn.Module, batch) -> torch.Tensor:
    return reduced(model, batch).expand(len(batch[1]))


def own(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def without_test(model: nn.Module, batch) -> torch.Tensor:
    """Fail on samples that are evaluated, which a loss on extra columns of the training data would do too."""
    return own(model, batch) if bool((batch[1] < 2).all()) else broken()


def broken(*arguments):
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": reduced}, r'`loss` of mine must return one loss per sample.*got shape \(\)\..*reduction="none"'),
        ({"loss": detached}, "must depend on the model's parameters"),
        ({"loss": lambda model, batch: 0.0}, "must return a tensor, got a float"),
        ({"metrics": {"luck": broken}}, r"`metrics\['luck'\]` of mine must work .* raised RuntimeError: no luck"),
        (
            {"metrics": {"none": lambda *_: math.nan}},
            r"`metrics\['none'\]` of mine must return a finite number for `test`, got nan",
        ),
        ({"model": broken}, "`model` of mine must work .* raised RuntimeError"),
        ({"model": lambda: 3}, "`model` of mine must return an nn.Module, got a int"),
        (
            {"loss": expanded},
            r"`loss` of mine must be the sample's alone, got \S+ in a batch of 4 and \S+ in a batch of its own\.",
        ),
        ({"loss": without_test, "test": other_labels(8)}, "`loss` of mine must work on the samples of `test`, but"),
        ({"loss": lambda *batch: own(*batch) * math.nan}, "`loss` of mine must be finite .* `train` .*, got nan"),
        ({"loss": lambda *batch: 1e39 * own(*batch)}, "`loss` of mine must be finite .* `train` .*, got inf"),
        ({"scores": broken}, "`scores` of mine must work on the losses, but raised"),
        ({"scores": torch.neg}, "`scores` of mine must return a finite number at or above 0 for each loss, got"),
        ({"scores": torch.mean}, r"`scores` of mine .* for each loss, got shape \(\)"),
    ],
    ids=[
        *("reduced loss", "no gradient", "no tensor", "metric", "not finite", "model raises", "no module"),
        *("expanded loss", "test", "nan", "infinite", "scores raise", "negative scores", "one score"),
    ],
)
def test_what_would_fail_in_training_fails_before_it(changes, message):
    with pytest.raises(LabError, match=message):
        check_task(make(**changes))


class Shrinking(TensorDataset):
    def __getitem__(self, index):
        self.tensors = tuple(tensor[:-1] for tensor in self.tensors)
        return super().__getitem__(index)


def test_a_dataset_that_changes_its_length_is_refused():
    with pytest.raises(LabError, match=r"`train` of mine must keep its length, got 20 at first and \d+ later"):
        check_task(make(train=Shrinking(*samples(20).tensors)))
    with pytest.raises(LabError, match=r"`test` of mine must keep its length, got 8 at first and"):
        check_task(make(test=Shrinking(*samples(8).tensors)))


class Wearing(TensorDataset):
    """Loses half of its samples when many of them were looked at."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        if self.looks == 150:
            self.tensors = tuple(tensor[: len(tensor) // 2] for tensor in self.tensors)
        return super().__getitem__(index)


def test_a_dataset_that_loses_samples_in_training_ends_it_with_the_reason():
    with pytest.raises(
        LabError, match="adam with seed 0: `train` of mine must keep its length, got 20 at first and 10"
    ):
        compare(make(train=Wearing(*samples(20).tensors)), methods=("adam",), seeds=1)


def test_a_loss_that_cannot_be_compared_with_that_of_one_sample_is_accepted():
    """It is random, or the model needs others beside a sample: neither says that the loss is wrong."""
    check_task(make(loss=lambda model, batch: own(model, batch) * (1.0 + torch.rand(len(batch[1])))))
    check_task(make(model=lambda: nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))))

    class Pairs(nn.Linear):
        def forward(self, inputs):
            assert len(inputs) > 1
            return super().forward(inputs)

    check_task(make(model=lambda: Pairs(3, 2), metrics={}))


BAD_TASKS = {
    "reduced loss": ("loss=lambda model, batch: loss(model, batch).mean()", "must return one loss per sample"),
    "metric": ("metrics={'luck': lambda outputs, targets: 1 / 0}", "metrics['luck']` of line must work on its samples"),
    "one model": ("model=lambda: MODEL", "must build a new model each time"),
    "length": ("train=Shrinking(*splits[0].tensors)", "must keep its length"),
    "empty test": ("test=TensorDataset(inputs[:0], targets[:0])", "`test` must not be empty"),
}


@pytest.mark.parametrize(("change", "message"), BAD_TASKS.values(), ids=BAD_TASKS)
def test_a_bad_task_ends_the_command_before_it_trains(change, message, task_file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = (
        TASK_FILE
        + f"""
from dataclasses import replace
MODEL = build()
class Shrinking(TensorDataset):
    def __getitem__(self, index):
        self.tensors = tuple(tensor[:-1] for tensor in self.tensors)
        return super().__getitem__(index)
def bad():
    return replace(task, {change})
"""
    )
    task_file.write_text(own)
    before = sorted(tmp_path.iterdir())
    assert main(["compare", "--task", f"{task_file}:bad", "--seeds", "1", "--jobs", "1"]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_a_metric_that_is_undefined_on_the_training_data_alone_is_refused():
    one_class = TensorDataset(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
    with pytest.raises(LabError, match="must return a finite number for `train`, got nan"):
        check_task(make(train=one_class, metrics={"ROC AUC": metrics.roc_auc}))


def test_a_model_function_that_returns_one_object_twice_is_refused():
    only = nn.Linear(3, 2)
    with pytest.raises(LabError, match="must build a new model each time"):
        check_task(make(model=lambda: only))
    shared = nn.Linear(3, 2)
    with pytest.raises(LabError, match="must build a new model each time"):
        check_task(make(model=lambda: nn.Sequential(shared)))
    values = torch.randn(2, 3)

    def with_values() -> nn.Module:
        model = nn.Linear(3, 2)
        model.weight = nn.Parameter(values)
        return model

    with pytest.raises(LabError, match="must build a new model each time"):
        check_task(make(model=with_values))
    counts = nn.BatchNorm1d(3, affine=False)
    with pytest.raises(LabError, match="two that share parameters or buffers"):
        check_task(make(model=lambda: nn.Sequential(counts, nn.Linear(3, 2))))


def test_a_metric_that_fails_on_a_few_samples_is_tried_on_all_of_them():
    sizes = []

    def picky(outputs, targets):
        sizes.append(len(outputs))
        if len(outputs) < 600:
            raise ValueError("one class only")
        return 1.0

    check_task(make(train=samples(700), test=samples(600), metrics={"picky": picky}))
    assert sizes == [512, 600, 512, 700]


def test_checking_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_task(make())
    assert torch.equal(torch.rand(2), expected)


def ranked(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores, many of them equal, and labels."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 12, (80,), generator=generator).float()
    return scores, (torch.rand(80, generator=generator) < 0.1 + 0.04 * scores).long()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["scores", "column", "two logits"])
def test_metrics_are_those_of_scikit_learn(seed, form):
    scores, labels = ranked(seed)
    outputs = {"scores": scores, "column": scores[:, None], "two logits": torch.stack([-scores / 2, scores / 2], 1)}[
        form
    ]
    assert metrics.average_precision(outputs, labels) == approx(sklearn_metrics.average_precision_score(labels, scores))
    assert metrics.roc_auc(outputs, labels) == approx(sklearn_metrics.roc_auc_score(labels, scores))
    chances = torch.sigmoid(scores.double()).numpy()
    assert metrics.log_loss(outputs, labels) == approx(sklearn_metrics.log_loss(labels, chances), rel=1e-6)
    assert metrics.accuracy(outputs, labels) == approx(float(((scores > 0) == labels.bool()).double().mean()))


def test_other_metrics_by_hand():
    outputs, targets = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 4.0, 4.0])
    assert metrics.rmse(outputs, targets) == approx(math.sqrt(5 / 3))
    assert metrics.relative_l2_error(outputs, targets) == approx(math.sqrt(5 / 33))
    logits, letters = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0)), torch.arange(20).view(4, 5) % 7
    losses = F.cross_entropy(logits.transpose(1, 2), letters, reduction="none")
    assert metrics.perplexity(logits, letters) == approx(math.exp(losses.mean().item()), rel=1e-6)
    assert metrics.perplexity(losses, letters) == approx(math.exp(losses.mean().item()), rel=1e-6)
    assert math.isnan(metrics.average_precision(outputs, torch.zeros(3)))
    assert math.isnan(metrics.roc_auc(outputs, torch.ones(3)))
    higher = {"accuracy": True, "average_precision": True, "roc_auc": True, "log_loss": False, "rmse": False}
    for name, better in {**higher, "perplexity": False, "relative_l2_error": False}.items():
        assert (getattr(metrics, name).better == "higher") == better
    with pytest.raises(ValueError, match="`better` must be one of"):
        Metric(metrics.rmse.function, better="larger")


def test_one_cycle_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=40, cycle_momentum=False)
    for done in range(40):
        assert SCHEDULES["one-cycle"](done, 40) == approx(scheduler.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        if done < 39:
            scheduler.step()


def test_warmup_stable_decay_rises_stays_and_falls():
    factors = [SCHEDULES["warmup-stable-decay"](done, 100) for done in range(100)]
    assert factors[:5] == approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:80] == [1.0] * 75
    assert factors[80:] == approx([(20 - step) / 20 for step in range(20)])


@pytest.mark.parametrize("total", [1, 2, 3, 7])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_few_steps_are_finite(schedule, total):
    assert all(0.0 <= SCHEDULES[schedule](done, total) <= 1.0 for done in range(total))


def test_flips_and_shifts_move_whole_pictures():
    images = torch.arange(2 * 36.0).view(2, 1, 6, 6)
    torch.manual_seed(0)
    moved = torch.cat([flip_and_shift(images, most=1) for _ in range(200)])[::2, 0]
    padded = F.pad(images[:1], (1, 1, 1, 1), mode="replicate")[0, 0]
    possible = [
        picture.flip(1) if flipped else picture
        for row in range(3)
        for column in range(3)
        for flipped in (False, True)
        for picture in (padded[row : row + 6, column : column + 6],)
    ]
    found = [[number for number, picture in enumerate(possible) if torch.equal(picture, one)] for one in moved]
    assert all(len(matches) == 1 for matches in found)
    assert len({matches[0] for matches in found}) == len(possible)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": 5}, "`task` must be a Task or its name, got task of type int"),
        ({"methods": "adam"}, "`methods` must be a sequence of names or Methods, got methods='adam'"),
        ({"methods": ()}, "`methods` must hold at least one method, got none"),
        ({"methods": 5}, "`methods` must be a sequence of names or Methods, got methods=5"),
        ({"methods": {"adam", "adamcb"}}, "`methods` must be a sequence of names or Methods, got a set"),
        ({"methods": [None]}, r"`methods\[0\]` must be a name or a Method, got methods\[0\]=None"),
        ({"methods": ["adam", 3]}, r"`methods\[1\]` must be a name or a Method, got methods\[1\]=3"),
        ({"methods": [Method]}, r"`methods\[0\]` must be a name or a Method, got methods\[0\]=<class"),
        ({"methods": ["adam", "adamcd"]}, r"`methods\[1\]` must be one of 'adam', .* Did you mean 'adamcb'\?"),
        ({"seeds": 10**15}, "`seeds` must be at most 1000000, got seeds=1000000000000000"),
        ({"seeds": True}, "`seeds` must be an integer, got seeds=True"),
        ({"seeds": 0}, "`seeds` must be at least 1, got seeds=0"),
        ({"out": "\udcff"}, r"`out` must be a path of Unicode characters, got '\\udcff'"),
        ({"out": 5}, "`out` must be a path, got out=5"),
        ({"jobs": 0}, "`jobs` must be at least 1, got jobs=0"),
        ({"jobs": "2"}, "`jobs` must be an integer, got jobs='2'"),
    ],
)
def test_arguments_of_compare_are_refused_by_name(task_file, changed, message):
    with pytest.raises(LabError, match=message):
        compare(**{"task": vars_of(task_file)["task"], "methods": ("adam",), "seeds": 1, **changed})


def test_a_task_from_python_is_compared_and_saved(task_file, tmp_path):
    task = vars_of(task_file)["task"]
    state = torch.get_rng_state()
    comparison = compare(task, methods=("adam", Method("mine", "Mine", scores="losses")), seeds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert "Mine" in comparison.verdict
    assert "test RMSE" in comparison.verdict
    assert [record["method"] for record in comparison.summary] == ["adam", "mine"]
    rows = [row for row in comparison.results if row["method"] == "adam"]
    assert [row["samples"] for row in rows] == [0, 90, 180] * 2
    assert rows[2]["test_rmse"] == approx(math.sqrt(rows[2]["test_loss"]), rel=1e-5)
    place = comparison.save(tmp_path / "kept")
    assert {"report.html", "summary.md", "results.csv", "epochs.png"} <= {path.name for path in place.iterdir()}
    assert (place / "summary.md").read_text().startswith(comparison.verdict)
    reason, _, _ = comparison.verdict.rpartition(": ")  # the page puts the advice in front
    page = html.unescape((place / "report.html").read_text())
    assert reason in page
    assert "irst losses" not in page, "it is no setting"
    folder = comparison.folder
    del comparison
    assert not folder.exists()


def vars_of(path: Path) -> dict:
    found: dict = {}
    exec(path.read_text(), found)
    return found


def test_a_task_from_a_file_gives_the_same_numbers_as_from_python(task_file, tmp_path, capsys, here):
    options = ["compare", "--task", f"{task_file}:task", "--method", "adam", "--seeds", "1", "--jobs", "1"]
    assert main([*options, "--out", str(tmp_path / "shell"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["config"]["metrics"] == [{"name": "RMSE", "better": "lower", "percent": False}]
    ours = compare(vars_of(task_file)["task"], methods=("adam",), seeds=1, out=tmp_path / "python")
    assert printed["summary"][0]["final_test_rmse"] == ours.summary[0]["final_test_rmse"]
    assert main([*options, "--out", str(tmp_path / "shell"), "--epochs", "3"]) == 1
    assert "--epochs was 2 and is now 3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*options, "--dataset", "digits"])
    assert "leave out --dataset and --model" in capsys.readouterr().err


def test_optimizer_and_weight_decay_reach_the_runs(task_file, tmp_path):
    losses = {}
    for name, changes in {"own": {}, "adamw": {"optimizer": "adamw", "weight_decay": 30.0}}.items():
        experiment = Experiment(task=f"{task_file}:task", methods=("adam",), seeds=1, max_steps=3, **changes)
        found = run_comparison(experiment, Options(out=tmp_path / name, jobs=0), Console(quiet=True))
        losses[name] = found.summary[0]["final_train_loss"]
    assert found.config["labels"] == {"adam": "AdamW"}
    assert losses["own"] != losses["adamw"]


def test_augmentation_reaches_the_runs_of_images(tmp_path):
    losses = {}
    for name in (None, "flip-and-shift"):
        experiment = Experiment(
            fraction=0.2, model="logistic", methods=("adam",), seeds=1, max_steps=3, augmentation=name
        )
        found = run_comparison(experiment, Options(out=tmp_path / str(name), jobs=0), Console(quiet=True))
        losses[name] = found.summary[0]["final_train_loss"]
        assert found.results[0]["train_loss"] == losses.setdefault("start", found.results[0]["train_loss"])
    assert losses[None] != losses["flip-and-shift"]
    with pytest.raises(LabError, match="`--augmentation` must not be given beside --task"):
        Experiment(task="rare-events", augmentation="flip-and-shift").load_task()


def test_protein_is_split_by_block(tmp_path):
    source = np.random.default_rng(0)
    block = np.repeat(np.arange(20), 30)
    x = source.normal(5.0, 3.0, size=(600, 4)).astype(np.float32)
    x[:, 0] = block
    np.savez(tmp_path / "protein.npz", x=x, y=(source.random(600) < 0.1).astype(np.uint8), block=block)
    train, test = read_protein(tmp_path / "protein.npz")
    assert (len(train), len(test)) == (480, 120)
    blocks = [set(split.tensors[0][:, 0].tolist()) for split in (train, test)]
    assert not blocks[0] & blocks[1]
    assert train.tensors[0].mean(0).tolist() == approx([0.0] * 4, abs=1e-5)
    assert train.tensors[0].std(0, correction=0).tolist() == approx([1.0] * 4, rel=1e-5)
    fitted, held_out = read_protein(tmp_path / "protein.npz", validation=True)
    assert (len(fitted), len(held_out)) == (360, 120)
    assert len(fitted.tensors[0][:, 0].unique()) == 12
    # Standardizing keeps the order of blocks: row by row these are the training rows, parted anew.
    parted = torch.cat([fitted.tensors[1], held_out.tensors[1]]).sum(), train.tensors[1].sum()
    assert parted[0] == parted[1]
    np.savez(tmp_path / "bad.npz", x=x, y=block, block=block)
    with pytest.raises(ValueError, match=r"bad\.npz must hold x \[n, d\], y \[n\] of 0 and 1"):
        read_protein(tmp_path / "bad.npz")


def test_a_sequence_predicts_its_next_letters_and_sees_no_later_ones(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh" * 40)
    train, test, letters = read_text(tmp_path / "text.txt", length=8)
    assert (letters, len(train), len(test)) == (8, 35, 3)
    assert train[1][0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    torch.manual_seed(0)
    model = GPT(8, length=8, width=16, layers=2).eval()
    (sequence,) = train[:2]
    changed = sequence.clone()
    changed[:, 5:] = 0
    with torch.no_grad():
        assert torch.allclose(model(sequence[:, :5]), model(sequence[:, :8])[:, :5], atol=1e-6)
        assert torch.allclose(model(changed[:, :8])[:, :5], model(sequence[:, :8])[:, :5], atol=1e-6)
        assert not torch.allclose(model(changed[:, :8])[:, 5:], model(sequence[:, :8])[:, 5:])
        assert sequence_loss(model, (sequence,)).shape == (2,)
