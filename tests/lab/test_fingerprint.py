"""A result folder knows what its task computed, and refuses another task of the same name."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from adamcb.lab import LabError, Task, compare
from adamcb.lab.experiment import COMPARED, Experiment, digest
from adamcb.lab.results import read_json, write_json
from adamcb.lab.tasks.fingerprint import KEYS, fingerprint, same_numbers
from adamcb.lab.tasks.load import load_image_task


def samples(count: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 3, generator=generator), torch.arange(count) % 2)


def own_loss(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def smoothed(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none", label_smoothing=0.1)


def scaled_in_training(model: nn.Module, batch) -> torch.Tensor:
    return own_loss(model, batch) * (2.0 if model.training else 1.0)


def make(**changes) -> Task:
    settings = {"model": lambda: nn.Linear(3, 2), "train": samples(24), "test": samples(8, seed=1), "loss": own_loss}
    return Task("mine", **{**settings, "batch_size": 4, "epochs": 1, **changes})


OTHERS = {
    "loss": ({"loss": smoothed}, "the list of losses before training was"),
    "training loss": ({"loss": scaled_in_training}, "the list of losses before training was"),
    "data": ({"train": samples(24, seed=2)}, "the list of losses before training was"),
    "test data": ({"test": samples(8, seed=3)}, "the list of losses before training was"),
    "model": (
        {"model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))},
        "the digest of the model's parameters was",
    ),
    "scores": ({"scores": "losses"}, "the list of scores before training was None and is now losses"),
    "function of scores": ({"scores": torch.sqrt}, "the list of scores before training was None and is now 0."),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("mine")
    compare(make(), methods=("adam",), seeds=1, out=out)
    return out


@pytest.mark.parametrize(("changes", "message"), OTHERS.values(), ids=OTHERS)
def test_another_task_of_the_same_name_is_refused(changes, message, finished):
    with pytest.raises(LabError, match=f"holds results of another configuration: {message}"):
        compare(make(**changes), methods=("adam",), seeds=1, out=finished)


def test_the_same_task_goes_on_although_another_machine_rounds_otherwise(finished):
    config = read_json(finished / "config.json")
    config["first_losses"] = [value * (1.0 + 1e-5) for value in config["first_losses"]]
    write_json(finished / "config.json", config)
    before = read_json(finished / ".runs" / "adam-seed0" / "done.json")
    compare(make(), methods=("adam",), seeds=1, out=finished)
    assert read_json(finished / ".runs" / "adam-seed0" / "done.json") == before


def test_two_functions_of_scores_are_told_apart():
    one, other = (fingerprint(make(scores=scores), "cpu") for scores in (torch.sqrt, torch.square))
    assert one["first_losses"] == other["first_losses"]
    assert not same_numbers(one["first_scores"], other["first_scores"])


class Noisy(TensorDataset):
    """Adds noise that torch does not draw, so that seeding torch does not repeat it."""

    def __getitem__(self, index):
        inputs, label = super().__getitem__(index)
        return inputs + random.random(), label


def test_losses_that_cannot_be_repeated_are_not_compared():
    assert fingerprint(make(train=Noisy(*samples(24).tensors)), "cpu")["first_losses"] is None
    noise = make(loss=lambda model, batch: own_loss(model, batch) + torch.rand(len(batch[1])))
    assert same_numbers(*(fingerprint(noise, "cpu")["first_losses"] for _ in range(2))), "torch's noise can be"


def test_folders_of_named_images_are_found_and_accepted_as_before():
    task = load_image_task("digits", "logistic", fraction=0.2, label_noise=None, data_dir=None)
    config = Experiment(model="logistic", methods=("adam",)).as_config(task)
    assert {name: config[name] for name in KEYS} == dict.fromkeys(KEYS)
    older = {name: value for name, value in config.items() if name not in KEYS}
    assert all(same_numbers(older.get(name), config[name]) for name in COMPARED)
    assert digest(config) == digest({**config, "first_losses": [1.0]}), "the name of the folder is the one it had"
