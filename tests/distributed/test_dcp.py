"""torch.distributed.checkpoint: what some ranks saved goes on exactly on any number of others."""

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel

from adamcb import AdamCB, AdaptiveLoader
from adamcb.data import whole_of
from adamcb.training._portable import unpack
from tests.distributed.launch import launch
from tests.training.problem import digits, eager, losses_of, mlp, plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SAMPLES, BATCH_SIZE = 180, 12
dcp: Any = torch.distributed.checkpoint  # type checkers do not know what it exports
FORMS = {"ddp": 1, "fully_shard": 1, "hybrid": 2}


def spread(model: nn.Module, form: str) -> nn.Module:
    """Return the model over all ranks: whole, in parts, or in parts that several groups of ranks hold."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        return model
    if form == "ddp":
        return DistributedDataParallel(model)
    world, groups = dist.get_world_size(), FORMS[form]
    shape, names = ((groups, world // groups), ("replicate", "shard")) if groups > 1 else ((world,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Run:
    """A loop of one's own: model, optimizer and loader, as the documents of torch save them."""

    def __init__(self, form: str, seed: int = 0, **options) -> None:
        self.model = spread(mlp(dtype=torch.float64, seed=seed), form)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.loader = AdaptiveLoader(self.model, digits(SAMPLES, torch.float64), BATCH_SIZE, seed=seed, **options)
        self.draws: list = []

    def train(self, until: int) -> None:
        while self.loader.meter.steps < until:
            for batch in self.loader:
                self.draws.append(whole_of(batch.draw).indices.tolist())
                self.optimizer.zero_grad()
                self.loader.weigh(losses_of(self.model, *batch)).backward()
                self.optimizer.step()
                if self.loader.meter.steps == until:
                    break

    def state(self) -> dict:
        optimizer = get_optimizer_state_dict(self.model, self.optimizer)
        return {"model": get_model_state_dict(self.model), "optimizer": optimizer, "loader": self.loader}

    def load(self, folder: str) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])

    def result(self) -> dict:
        tensors = (value.full_tensor() if hasattr(value, "full_tensor") else value for value in self.model.parameters())  # pyright: ignore
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()
        return {"draws": list(self.draws), "parameters": flat, "loader": plain(unpack(self.loader.state_dict()))}


def save_at(form: str, folder: str, steps: int, asynchronous: bool = False) -> dict:
    run = Run(form)
    run.train(steps)
    if asynchronous:
        own_group = dist.new_group(backend="gloo")  # or its messages would be taken for those of training
        saving = dcp.async_save(run.state(), checkpoint_id=folder, process_group=own_group)
        kept = run.result()
        run.train(steps + 3)  # goes on while it is written
        saving.result()
        return kept
    dcp.save(run.state(), checkpoint_id=folder)
    return run.result()


def go_on(form: str, folder: str, steps: int) -> dict:
    run = Run(form, seed=7)
    run.train(1)  # or nothing but the first epoch's shuffled order would be compared
    run.load(folder)
    run.draws.clear()
    loaded = run.result()["loader"]
    run.train(steps)
    return {**run.result(), "loaded": loaded}


def in_one_process(steps: int) -> dict:
    run = Run("alone")
    run.train(steps)
    return run.result()


def check_resumed(resumed: list[dict], saved: dict, expected: dict, at: int) -> None:
    for rank in (saved, *resumed):
        if isinstance(rank, Exception):
            raise rank
    assert saved["draws"] == expected["draws"][:at]
    for rank in resumed:
        assert rank["loaded"] == saved["loader"]
        assert rank["draws"] == expected["draws"][at:]
        np.testing.assert_allclose(rank["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)


def test_the_loader_and_the_trainer_are_stateful():
    with AdaptiveLoader(mlp(), digits(50), 10) as loader, AdamCB(mlp(), digits(50), 10) as trainer:
        assert isinstance(loader, Stateful)
        assert isinstance(trainer, Stateful)


def test_two_ranks_save_and_one_goes_on(tmp_path):
    """In the middle of the second epoch."""
    expected = in_one_process(30)
    saved = launch(2, save_at, "fully_shard", str(tmp_path / "saved"), 20)[0]
    check_resumed([go_on("alone", str(tmp_path / "saved"), 30)], saved, expected, at=20)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "async"])
@pytest.mark.parametrize("form", FORMS)
def test_any_number_of_ranks_goes_on_where_four_stopped(tmp_path, form, asynchronous):
    expected, folder = in_one_process(40), str(tmp_path / "saved")
    saved = launch(4, save_at, form, folder, 25, asynchronous)[0]
    for world_size in (2, 4) if form == "hybrid" else (2, 3):
        check_resumed(launch(world_size, go_on, form, folder, 40), saved, expected, at=25)


def train_until_killed(folder: str, die_at: int) -> dict:
    """Save every tenth step; the last rank dies between backward and step of one."""
    run = Run("fully_shard")
    for batch in (batch for _ in range(9) for batch in run.loader):
        run.optimizer.zero_grad()
        run.loader.weigh(losses_of(run.model, *batch)).backward()
        if run.loader.meter.steps == die_at and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run.optimizer.step()
        run.loader.learn()
        if run.loader.meter.steps % 10 == 0:
            place = os.path.join(folder, str(run.loader.meter.steps))
            dcp.save(run.state(), checkpoint_id=place)
            if dist.get_rank() == 0:
                torch.save(plain(unpack(run.loader.state_dict())), f"{place}.pt")
    return run.result()


@pytest.mark.slow
def test_four_ranks_of_fully_shard_are_killed_and_two_or_three_go_on(tmp_path):
    expected = in_one_process(45)
    *survivors, killed = launch(4, train_until_killed, str(tmp_path), 37)
    assert killed == -signal.SIGKILL
    assert all(isinstance(rank, RuntimeError) for rank in survivors)
    assert sorted(os.listdir(tmp_path)) == ["10", "10.pt", "20", "20.pt", "30", "30.pt"]
    saved = {"draws": expected["draws"][:30], "loader": torch.load(tmp_path / "30.pt", weights_only=True)}
    for world_size in (2, 3):
        resumed = launch(world_size, go_on, "fully_shard", str(tmp_path / "30"), 45)
        check_resumed(resumed, saved, expected, at=30)


def trainer_of(form: str, seed: int = 0, **options) -> AdamCB:
    model = spread(mlp(dtype=torch.float64, seed=seed), form)
    return AdamCB(model, digits(SAMPLES, torch.float64), BATCH_SIZE, lr=0.01, seed=seed, **options)


def step(trainer: AdamCB, until: int) -> dict:
    draws = []
    while trainer.meter.steps < until:
        for batch in trainer:
            draws.append(whole_of(batch.draw).indices.tolist())
            trainer.step(losses_of(trainer.model, *batch))
            if trainer.meter.steps == until:
                break
    tensors = (value.full_tensor() if hasattr(value, "full_tensor") else value for value in trainer.model.parameters())  # pyright: ignore
    return {"draws": draws, "parameters": torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()}


def train_and_save(form: str, folder: str, steps: int) -> dict:
    trainer = trainer_of(form, feedback_delay=1)
    done = step(trainer, steps)
    if form != "ddp":
        with pytest.raises(NotImplementedError, match=r"`dcp.save\(\{\"trainer\": trainer\}"):
            trainer.save(folder)
    dcp.save({"trainer": trainer}, checkpoint_id=folder)
    return done


def load_and_train(form: str, folder: str, steps: int, before: int) -> dict:
    trainer = trainer_of(form, seed=5, feedback_delay=1)
    step(trainer, before)
    dcp.load({"trainer": trainer}, checkpoint_id=folder)
    return step(trainer, steps)


@pytest.mark.parametrize(
    ("form", "steps"),
    [
        *(("alone", steps) for steps in (0, 20)),
        *(pytest.param(form, 20, marks=pytest.mark.slow) for form in FORMS),
        pytest.param("fully_shard", 0, marks=pytest.mark.slow),
    ],
)
def test_a_trainer_goes_on_with_model_and_optimizers(tmp_path, form, steps):
    """From a state before the first step too, where optimizers have none."""
    folder = str(tmp_path / "saved")
    expected = step(trainer_of("alone", feedback_delay=1), 30)
    if form == "alone":
        train_and_save("ddp", folder, steps)
        resumed = [load_and_train("alone", folder, 30, before) for before in (0, 3)]
    else:
        launch(4, train_and_save, form, folder, steps)
        resumed = launch(2, load_and_train, form, folder, 30, 0)
    for rank in resumed:
        assert rank["draws"] == expected["draws"][steps:]
        np.testing.assert_allclose(rank["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)


def test_what_varies_in_shape_is_saved_too(tmp_path):
    """Draws made ahead for workers, feedback on its way, and random numbers left over."""

    def new(seed: int) -> Run:
        options = {"num_workers": 1, "multiprocessing_context": "fork", "feedback_delay": 2}
        return Run("alone", seed, selection=eager(SAMPLES, BATCH_SIZE, seed), **options)

    undisturbed, run, other = new(0), new(0), new(3)
    undisturbed.train(40)
    run.train(20)
    dcp.save(run.state(), checkpoint_id=tmp_path / "saved")
    state = unpack(run.loader.state_dict())
    assert [len(state["feedback"]), len(state["loader"]["pending"])] == [2, 2]
    assert len(state["selection"]["uniforms"])
    other.load(str(tmp_path / "saved"))
    other.train(40)
    assert other.draws == undisturbed.draws[20:]
    assert plain(unpack(other.loader.state_dict())) == plain(unpack(undisturbed.loader.state_dict()))


def test_a_state_of_another_selection_is_refused(tmp_path):
    run, other = Run("alone"), Run("alone", selection=eager(SAMPLES, BATCH_SIZE))
    dcp.save({"loader": run.loader}, checkpoint_id=tmp_path / "saved")
    before = plain(unpack(other.loader.state_dict()))
    with pytest.raises(Exception, match="kind='CombinatorialBandit', got kind='QueueBandit'"):
        dcp.load({"loader": other.loader}, checkpoint_id=tmp_path / "saved")
    assert plain(unpack(other.loader.state_dict())) == before
