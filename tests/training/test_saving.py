"""Checkpoints: whole or not at all, refused when they do not fit, and then nothing is changed."""

import copy
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from adamcb import AdamCB, CombinatorialBandit, UniformSelection, _files
from adamcb._files import DRAFT, new_save_id, seal_archive, whole_file
from adamcb.training import generator_states, read_checkpoint, set_generator_states, write_checkpoint
from tests.patience import patience
from tests.training.problem import digits, eager, losses_of, mlp, plain, snapshot, train

K = 8


def make(count: int = 100, batch_size: int = K, model: nn.Module | None = None, **options) -> AdamCB:
    options.setdefault("selection", eager(count, batch_size, options.get("seed", 0)))
    options.setdefault("lr", None if "optimizer" in options else 0.01)
    return AdamCB(mlp() if model is None else model, digits(count), batch_size, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def readings(trainer: AdamCB) -> dict[str, float]:
    return {name: value for name, value in trainer.meter.as_dict().items() if not name.startswith("seconds")}


@pytest.mark.parametrize("steps", [0, 1, 5, 12, 13, 30])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loaded_checkpoint_goes_on_bit_for_bit(path, steps, num_workers):
    through = make(num_workers=num_workers)
    done, history, saved = 0, [], False
    for _ in range(3):
        if steps == 0 and not saved:
            through.save(path)
            saved = True
        for x, y in through:
            history.append(through.step(losses_of(through.model, x, y)).item())
            done += 1
            if done == steps:
                through.save(path, extra={"done": done})
                saved = True
    resumed = make(model=mlp(seed=1), seed=9, num_workers=num_workers)
    assert resumed.load(path) == ({"done": steps} if steps else None)
    again = []
    for _ in range(resumed.epoch, 3):
        again += [resumed.step(losses_of(resumed.model, x, y)).item() for x, y in resumed]
    assert again == history[steps:]
    assert snapshot(resumed) == snapshot(through)
    assert readings(resumed) == pytest.approx(readings(through), nan_ok=True, rel=0, abs=0)
    assert resumed.epoch == through.epoch == 3


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_exact_norms_of_images_go_on_bit_for_bit(path, steps):
    """The first passes are checked, and sum their parts in another order: a resumed run must check the same ones."""

    def build(seed: int) -> AdamCB:
        torch.manual_seed(seed)
        layers = (
            nn.Conv2d(1, 8, 3),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.Flatten(),
            nn.Linear(256, 10),
        )
        return make(model=nn.Sequential(*layers), scores="exact")

    through, resumed = build(0), build(1)
    train(through, steps)
    through.save(path)
    expected = train(through, 9)
    resumed.load(path)
    assert train(resumed, 9) == expected
    assert snapshot(resumed) == snapshot(through)


def test_global_generators_are_saved(path):
    trainer = make()
    trainer.save(path)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    _ = torch.rand(3), np.random.rand(3), random.random()
    trainer.load(path)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


@pytest.mark.parametrize("name", ["torch", "numpy", "python"])
def test_states_of_generators_are_checked_before_any_is_set(name):
    cpu = torch.device("cpu")
    before = plain(generator_states(cpu))
    good = generator_states(cpu)
    _ = torch.rand(3), np.random.rand(3), random.random()
    after = plain(generator_states(cpu))
    for bad in (None, 3, torch.zeros(3), ("MT19937", None)):
        with pytest.raises(ValueError, match=rf"`states\['{name}'\]` must be the state of a generator of {name}"):
            set_generator_states(cpu, {**good, name: bad})
    with pytest.raises(ValueError, match="`states` must be a dict with the keys torch, numpy, python, got states="):
        set_generator_states(cpu, {key: value for key, value in good.items() if key != name})
    assert plain(generator_states(cpu)) == after
    set_generator_states(cpu, good)
    assert plain(generator_states(cpu)) == before


def test_a_state_in_memory_is_not_shared_after_loading():
    trainer = make()
    train(trainer, 3)
    state = copy.deepcopy(trainer.state_dict())
    first = [(trainer.load_state_dict(state), train(trainer, 5))[1] for _ in range(2)]
    assert first[0] == first[1]


def test_saving_amid_a_step_is_an_error(path):
    trainer = make()
    x, y = next(iter(trainer))
    with pytest.raises(RuntimeError, match="between steps"):
        trainer.save(path)
    loss = trainer.weigh(losses_of(trainer.model, x, y))
    with pytest.raises(RuntimeError, match="between steps"):
        trainer.save(path)
    loss.backward()
    trainer.save(path)


def resealed(change):
    """Change what a file holds, and give it the digest of its new content."""

    def damage(path):
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)
        seal_archive(path, new_save_id())

    return damage


def rewritten(change):
    return resealed(lambda content: change(content["state"]))


def moments(state):
    return state["optimizers"][0]["state"]["state"]


def groups(state):
    return state["optimizers"][0]["state"]["param_groups"]


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def foreign_state(path):
    torch.save(mlp().state_dict(), path)


OPTIMIZER_DAMAGES = {
    "no step": (lambda state: moments(state)[0].pop("step"), "must have the keys step"),
    "no moment": (lambda state: moments(state)[0].pop("exp_avg"), "must have the keys exp_avg"),
    "a step below 0": (lambda state: moments(state)[0].update(step=torch.tensor(-1.0)), "must be a finite number"),
    "no number of steps": (
        lambda state: moments(state)[0].update(step=torch.tensor(float("nan"))),
        "must be a finite number",
    ),
    "half a step": (lambda state: moments(state)[0].update(step=torch.tensor(2.5)), "whole number"),
    "another shape": (
        lambda state: moments(state)[0].update(exp_avg=torch.zeros(3)),
        r"`state\[0\]\['exp_avg'\]` must be a tensor of shape \(8, 64\) and torch.float32, got shape \(3,\)",
    ),
    "a scalar": (lambda state: moments(state)[1].update(exp_avg_sq=torch.tensor(0.0)), "got shape"),
    "another dtype": (
        lambda state: moments(state)[0].update(exp_avg=torch.zeros(8, 64, dtype=torch.float64)),
        "got shape .* and torch.float64",
    ),
    "a moment of NaN": (
        lambda state: moments(state)[0]["exp_avg"][0].fill_(float("nan")),
        "hold no NaN, got 64 of 512",
    ),
    "a negative square": (
        lambda state: moments(state)[0]["exp_avg_sq"][0, 0].fill_(-1.0),
        "numbers at or above 0, got 1",
    ),
    "shared memory": (
        lambda state: moments(state)[0].update(exp_avg=torch.zeros(1, 64).expand(8, 64)),
        r"must have memory for each entry, got the strides \(0, 1\)",
    ),
    "too many states": (lambda state: moments(state).update({9: moments(state)[0]}), "parameters 0 to 3"),
    "another order": (lambda state: groups(state)[0].update(params=[1, 0, 2, 3]), "in this order"),
    "too few parameters": (lambda state: groups(state)[0].update(params=[0, 1, 2]), "in this order"),
    "another group": (
        lambda state: groups(state).append(groups(state)[0]),
        "must have 1 param_groups, got 2",
    ),
    "a bad lr": (lambda state: groups(state)[0].update(lr=-1.0), "lr'.* must be a finite number"),
    "an lr of NaN": (lambda state: groups(state)[0].update(lr=float("nan")), "lr'.* must be a finite number"),
    "a word for lr": (lambda state: groups(state)[0].update(lr="x"), "lr'.* must be a number"),
    "no lr": (lambda state: groups(state)[0].pop("lr"), "must have the setting lr"),
    "bad betas": (
        lambda state: groups(state)[0].update(betas=(0.9, 1.0)),
        "betas'.*must be a finite number",
    ),
    "a bad flag": (lambda state: groups(state)[0].update(maximize="yes"), "must be True, False or None"),
}


def drawn(state, size: int = K, **changes):
    values = torch.full((size,), K / 100, dtype=torch.float64)
    draw = {"indices": torch.arange(size), "probs": values, "loss_weights": 1.0 / (100 * values)}
    return {"origin": state["selection"]["origin"], **draw, **changes}


def pend(state, **changes) -> None:
    """Put a draw made ahead into a state."""
    number = state["loader"]["next_number"]
    state["loader"]["pending"] = [{"number": number, **drawn(state, **changes)}]
    state["loader"]["next_number"] += 1


def report(state, times: int = 1, **changes) -> None:
    """Put scores on their way into a state."""
    ones = torch.ones(K)
    tensors = {"measured": ones, "arrived": ones, "losses": ones, "largest_gradient": None}
    state["feedback"] = [{"draw": drawn(state, **changes), **tensors}] * times


def test_what_is_put_into_states_here_fits_unless_it_is_changed(path):
    trainer = make()
    train(trainer, 5)
    for change in (pend, report):
        trainer.save(path)
        rewritten(change)(path)
        make(seed=1).load(path)


DAMAGES = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-2000]), "damaged, or no checkpoint of adamcb"),
    "empty": (lambda path: path.write_bytes(b""), "damaged, or no checkpoint of adamcb"),
    "text": (lambda path: path.write_text("hello"), "damaged, or no checkpoint of adamcb"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "no checkpoint of adamcb"),
    "code": (
        lambda path: (torch.save(Bomb(), path), seal_archive(path, new_save_id())),
        "damaged, or no checkpoint of adamcb",
    ),
    "another torch file": (foreign_state, "it does not end with a digest: it is truncated, of an older format"),
    "another kind": (resealed(lambda content: content.update(kind="mine")), "is no checkpoint of adamcb"),
    "an older format": (resealed(lambda content: content.update(format=2)), "must have format 3, got format 2"),
    "a part missing": (rewritten(lambda state: state.pop("feedback")), "must be a dict with the keys"),
    "a bad epoch": (rewritten(lambda state: state.update(epoch="first")), "`epoch` must be an integer"),
    "an epoch of no training": (rewritten(lambda state: state.update(epoch=10**30)), "`epoch` must be at most 10+,"),
    "a rank that is none": (
        rewritten(lambda state: state["generators"].update(rank="x")),
        "rank'.* must be an integer",
    ),
    "a draw of another": (rewritten(lambda state: pend(state, origin=7)), "pending draws must be of its selection"),
    "a draw with other weights": (
        rewritten(lambda state: pend(state, loss_weights=torch.full((K,), 50.0 / K, dtype=torch.float64))),
        r"loss_weights'\]` must be 1/\(n·probs\), got 50 times as much",
    ),
    "a draw that is too small": (rewritten(lambda state: pend(state, size=K - 1)), r"len\(.*must be at least 8"),
    "a report of another": (rewritten(lambda state: report(state, origin=7)), "must be a draw of this selection"),
    "too many reports": (rewritten(lambda state: report(state, times=10_001)), "must hold at most 10000 reports"),
    "a negative average": (
        rewritten(lambda state: state["selection"]["feedback"].update(mean=-1.0)),
        "'mean'.* must be a finite number in",
    ),
    "too much trust": (rewritten(lambda state: state["selection"]["feedback"].update(trust=2.0)), "'trust'.* must be"),
    "a bad position": (rewritten(lambda state: state["loader"].update(position=99)), "position"),
    "bad weights": (rewritten(lambda state: state["selection"]["weights"].fill_(float("nan"))), "weights"),
    "a bad meter": (rewritten(lambda state: state["meter"].pop("average")), "average"),
    "bad generators": (rewritten(lambda state: state["generators"].update(torch=torch.zeros(3))), "fit this AdamCB"),
    **{name: (rewritten(change), message) for name, (change, message) in OPTIMIZER_DAMAGES.items()},
    "a model of another dtype": (
        rewritten(lambda state: state["model"].update({"1.bias": torch.zeros(8, dtype=torch.float64)})),
        "model's 1.bias must be a tensor of torch.float32, got torch.float64",
    ),
    "bad uniforms": (rewritten(lambda state: state["selection"]["uniforms"].fill_(1.0)), r"must lie in \[0, 1\)"),
    "a bad count": (rewritten(lambda state: state["meter"].update(steps=-1)), "must be at least 0"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_no_good_is_named_and_nothing_is_changed(path, name, monkeypatch):
    monkeypatch.chdir(path.parent)
    damage, message = DAMAGES[name]
    other = make()
    train(other, 5)
    other.save(path)
    damage(path)
    refused(make(model=mlp(seed=1), seed=1), path, message)
    assert not (path.parent / "exploded").exists()


MISFITS = {
    "another n": (lambda: make(count=99), r"num_samples=99, got num_samples=100"),
    "another K": (lambda: make(batch_size=9), r"batch_size=9, got batch_size=8"),
    "another model": (lambda: make(model=mlp(width=9)), "size mismatch"),
    "other layers": (lambda: make(model=nn.Sequential(*mlp(), nn.Linear(10, 10))), "Missing key"),
    "another selection": (lambda: make(selection=UniformSelection(100, K)), "kind='UniformSelection'"),
    "another feedback": (lambda: make(selection=CombinatorialBandit(100, K, feedback="proof")), "feedback"),
    "another optimizer": (
        lambda: (lambda model: make(model=model, optimizer=torch.optim.SGD(model.parameters())))(mlp()),
        "optimizers SGD, got AdamX",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_checkpoint_of_something_else_is_named_and_nothing_is_changed(path, name):
    other = make()
    train(other, 5)
    other.save(path)
    build, message = MISFITS[name]
    refused(build(), path, message)


def in_numbers(state):
    """Return the optimizer's state of a `state_dict` as a file has it, which the damages are written for."""
    entry = state["optimizers"]["0"]["state"]
    names = [name for group in entry["param_groups"] for name in group["params"]]
    moments = {names.index(name): moment for name, moment in entry["state"].items()}
    groups = [{**group, "params": [names.index(name) for name in group["params"]]} for group in entry["param_groups"]]
    return {"optimizers": [{"state": {"state": moments, "param_groups": groups}}]}, names


def by_name(state, names):
    entry = state["optimizers"][0]["state"]
    moments = {dict(enumerate(names)).get(number, "more"): moment for number, moment in entry["state"].items()}
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in entry["param_groups"]]
    return {"state": moments, "param_groups": groups}


def with_adamw(seed: int) -> AdamCB:
    model = mlp(seed=seed)
    return make(model=model, seed=seed, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))


@pytest.mark.parametrize(
    "build", [with_adamw, lambda seed: make(model=mlp(seed=seed), seed=seed)], ids=["AdamW", "AdamX"]
)
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", sorted({*OPTIMIZER_DAMAGES} - {"another order"}))
def test_an_optimizer_state_in_memory_is_checked_as_one_of_a_file_is(build, steps, name):
    """torch loads all of these, and its fused kernel ends the process at the next step."""
    damage, message = OPTIMIZER_DAMAGES[name]
    other, trainer = build(0), build(1)
    train(other, 5)
    train(trainer, steps)
    state, before = copy.deepcopy(other.state_dict()), copy.deepcopy(trainer.state_dict())
    numbered, names = in_numbers(state)
    damage(numbered)
    state["optimizers"]["0"]["state"] = by_name(numbered, names)
    with pytest.raises(ValueError, match=message):
        trainer.load_state_dict(state)
    assert plain(trainer.state_dict()) == plain(before)
    assert bool(trainer.optimizer.state) == bool(steps)


@pytest.mark.parametrize("entry", [{"kind": "AdamW"}, {"kind": "AdamW", "is_fresh": "no", "state": {}}])
def test_an_optimizer_state_in_memory_without_its_keys_is_refused(entry):
    trainer = with_adamw(0)
    state = {**trainer.state_dict(), "optimizers": {"0": entry}}
    with pytest.raises(ValueError, match="its optimizers must have the keys kind, is_fresh, state, got kind"):
        trainer.load_state_dict(state)


def test_a_group_without_a_setting_is_refused_and_nothing_is_changed():
    trainer = with_adamw(0)
    state = copy.deepcopy(trainer.state_dict())
    del state["optimizers"]["0"]["state"]["param_groups"][0]["betas"]
    with pytest.raises(ValueError, match="its param_groups must have the setting betas"):
        trainer.load_state_dict(state)
    train(trainer, 1)


def test_a_state_in_memory_goes_by_the_names_of_parameters_and_not_by_their_order():
    def build(order) -> AdamCB:
        model = mlp()
        parameters = list(model.parameters())
        return make(model=model, optimizer=torch.optim.AdamW([parameters[number] for number in order], lr=0.01))

    one, other = build([0, 1, 2, 3]), build([3, 1, 0, 2])
    train(one, 5)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert train(one, 2) == train(other, 2)
    assert [p.tolist() for p in one.model.parameters()] == [p.tolist() for p in other.model.parameters()]


def refused(trainer: AdamCB, path, message: str) -> None:
    """Assert that `path` is refused in the middle of an epoch, which then goes on as if nothing had been."""
    train(trainer, 3)
    undisturbed = copy.deepcopy(trainer.state_dict())
    batches = iter(trainer)
    trainer.step(losses_of(trainer.model, *next(batches)))
    state = copy.deepcopy(trainer.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        trainer.load(path)
    assert str(path) in str(caught.value)
    assert plain(trainer.state_dict()) == plain(state)
    trainer.step(losses_of(trainer.model, *next(batches)))  # the running loop has not ended
    after = snapshot(trainer)
    trainer.load_state_dict(undisturbed)
    train(trainer, 2)
    assert snapshot(trainer) == after


def test_a_missing_file_is_an_error(path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at"):
        make().load(path)


def test_extra_must_be_readable_without_code_and_the_older_file_stays(path):
    trainer = make()
    trainer.save(path, extra={"best": 0.5, "lr": [1e-3, None], "mask": torch.ones(3)})
    older = path.read_bytes()
    with pytest.raises(TypeError, match="A checkpoint must hold tensors, numbers"):
        trainer.save(path, extra=Bomb())
    assert path.read_bytes() == older
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link_and_permissions_are_the_usual_ones(path):
    link = path.with_name("latest.pt")
    make().save(path)
    link.symlink_to(path.name)
    trainer = make()
    train(trainer, 2)
    trainer.save(link)
    assert link.is_symlink()
    fresh = make()
    fresh.load(path)
    assert snapshot(fresh) == snapshot(trainer)
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_write_that_fails_leaves_the_older_file_and_nothing_else(path):
    trainer = make()
    trainer.save(path)
    older = path.read_bytes()
    train(trainer, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(older) // 2, before[1]))
    try:
        with pytest.raises(OSError, match=r"The checkpoint .*checkpoint.pt could not be written"):
            trainer.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == older
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(OSError, match="could not be written"):
        trainer.save(path.parent / "nowhere" / "checkpoint.pt")


WRITER = """
import sys, torch
from adamcb.training import write_checkpoint
number = 0
while True:
    number += 1
    write_checkpoint(sys.argv[1], {"number": number, "data": torch.full((2_000_000,), float(number))})
    print(number, flush=True)
"""


def drafts(folder: Path) -> list[Path]:
    return list(folder.glob(f"{DRAFT}*"))


def stop_while_writing(process: subprocess.Popen[bytes], folder: Path, delay: float) -> None:
    """Let the process run until it can be stopped with its file half written."""
    deadline = time.monotonic() + patience(60.0)
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGCONT)
        while not drafts(folder) and time.monotonic() < deadline:
            pass
        time.sleep(delay)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # the signal needs a moment to arrive
        if drafts(folder):
            return
        delay /= 2  # the file was complete before
    raise AssertionError("no file was half written within a minute")


@pytest.mark.parametrize(
    "delay", [0.004, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(0.016, marks=pytest.mark.slow)]
)
def test_a_kill_while_writing_leaves_a_whole_file(path, delay):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        last = int(process.stdout.readline())
        stop_while_writing(process, path.parent, delay)
        process.kill()
        last = int((process.stdout.read().split() or [last])[-1])
    assert drafts(path.parent)
    state = read_checkpoint(path).state
    assert state["number"] >= last
    assert (state["data"] == state["number"]).all()
    write_checkpoint(path, {})
    assert not drafts(path.parent)


def test_a_draft_that_is_being_written_is_not_swept(path):
    with whole_file(path) as draft:
        draft.write_text("mine")
        write_checkpoint(path, {})
        assert draft.read_text() == "mine"
    assert path.read_text() == "mine"  # the last complete write
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_is_a_plain_archive(path):
    make().save(path)
    assert zipfile.is_zipfile(path)
    assert torch.load(path, weights_only=True)["format"] == 3


def test_a_draft_that_another_process_is_about_to_sweep_is_not_used(path, monkeypatch):
    """It was created and not locked yet when the other process took the lock; the other will remove it."""
    lock, swept = _files._lock, []

    def lock_later(handle: int) -> bool | None:
        if not swept:
            (draft,) = drafts(path.parent)
            swept.append((draft, os.open(draft, os.O_RDWR)))
            assert lock(swept[0][1])
        return lock(handle)

    monkeypatch.setattr(_files, "_lock", lock_later)
    with whole_file(path) as draft:
        ((theirs, handle),) = swept
        assert draft != theirs
        theirs.unlink()
        os.close(handle)
        draft.write_text("whole")
    assert path.read_text() == "whole"
    assert not drafts(path.parent)
