"""Every public constructor, function and method: an argument works as documented, or is refused by name."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import adamcb
from adamcb import data, gradnorm, lab, optim, paper, selection, theory, training
from adamcb.gradnorm._table import OPERATIONS
from tests.argument_case import Case, K, N, bandit, dataset, model, seeded
from tests.argument_cases import CASES, trained, trainer
from tests.argument_kinds import pool

ARGUMENTS = [(name, argument) for name, case in CASES.items() for argument in case.kinds]


def refusal(case: Case, subject: Any, argument: str, value: Any) -> Exception | None:
    """Call with one argument replaced, and return what it raised of the kinds that it may."""
    first = () if subject is None else (subject,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case.done(case.call(*first, **{**case.good(), argument: value}))
        except (TypeError, ValueError, OSError, lab.LabError) as error:
            return error
    return None


def try_value(case: Case, argument: str, value: Any) -> None:
    """Hold the outcome of a call against what the table says."""
    subject = None if case.subject is None else case.subject()
    before = None if subject is None else case.state(subject)
    expected, error = case.kinds[argument](value), refusal(case, subject, argument, value)
    what = f"{argument}={value!r} of type {type(value).__name__}"
    if error is None:
        assert expected is not False, f"{what} must be refused"
        return
    if isinstance(error, OSError):
        assert expected is not False, f"{what} must be refused before a file is looked at"
        return
    assert expected is not True, f"{what} must work, got {error}"
    # Two values that do not go together are refused by the name of either.
    named = [argument] if isinstance(error, TypeError) else [argument, *case.kinds]
    assert any(name in str(error) for name in named), f"{what}: the message must name it: {error}"
    if subject is not None:
        assert case.state(subject) == before, f"{what} was refused, and changed something"


@pytest.fixture(autouse=True)
def leave_nothing_behind(tmp_path, monkeypatch):
    """Write where it does no harm, and forget rules that were registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adamcb.gradnorm._table.OPERATIONS", dict(OPERATIONS))


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS, ids=lambda part: part)
def test_every_argument_works_or_is_refused_by_name(name, argument):
    for value in pool():
        try_value(CASES[name], argument, value)


NUMBERS = st.one_of(
    st.integers(-100, 100), st.sampled_from([10**18, -(10**18), 10**400]), st.floats(), st.booleans(), st.none()
)
VALUES = st.one_of(
    NUMBERS, st.text(max_size=4), st.complex_numbers(), st.lists(NUMBERS | st.text(max_size=2), max_size=4)
)


@settings(
    max_examples=400,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=st.sampled_from(ARGUMENTS), value=VALUES)
def test_no_argument_can_be_fuzzed(place, value):
    name, argument = place
    if argument in ("path", "out", "data_dir"):
        return  # any text is one
    try_value(CASES[name], argument, value)


def test_the_table_has_every_public_name_and_argument():
    without = {"Draw"}  # made by selections; its arrays are not checked again
    for name in set(adamcb.__all__) - without:
        assert name in CASES, f"{name} is not in the table"
    for name in set(theory.__all__) - {"REGRET_FIELDS", "Constants", "Interval", "Minimum", "Regret", "RegretBound"}:
        assert f"theory.{name}" in CASES, f"theory.{name} is not in the table"
    for name in set(selection.__all__) - {"Draw", "Feedback", "Visit"}:
        assert name in CASES, f"selection.{name} is not in the table"
    for name in paper.__all__:
        assert f"paper.{name}" in CASES
    for name, case in CASES.items():
        known = {*case.kinds, *case.left_out}
        parameters = inspect.signature(case.call).parameters.values()
        taken = {entry.name for entry in parameters if entry.kind is not entry.VAR_KEYWORD} - {"self", "subject", "_"}
        assert taken <= known, f"{name} has no line for {taken - known}"


# Methods that have no line of their own, and why.
WITHOUT = {
    "AdamX.step": "torch's own, with a closure",
    "BanditLoader.set_epoch": "does nothing, whatever it is given",
    "Call": "made for a rule, with the operation that is running",
    "Dense": "made by rules, of the tensors of a backward pass",
    "Draw.from_state": "called by `load_state_dict`, which has a line",
    "Selection.restored_draw": "called by `load_state_dict`, which has a line",
    "Strata.places_of": "called by the meter and the record of samples, with the strata's own draws",
    "Strata.samples_at": "called by the record of samples, with its own places",
    "Feedback": "called by selections, with what they have checked",
    "LogisticProblem.batch": "called by `measure_regret` at every step, with its own draws",
    "Lookup": "as `Dense`",
    "Meter.note_draw": "called by the loader, with its own draws",
    "Meter.note_fetched": "called by the loader, with what its clock says",
    "Meter.note_scores": "as `note_draw`",
    "Meter.of": "called by the loader, with its own selection",
    "Observer": "what others implement",
    "Outer": "as `Dense`",
    "PerSampleNorms.take": "as `is_done`",
    "SecondMoment.check_state": "called by `load_state_dict`",
    "Selection.check_state": "called by `load_state_dict`",
    "Selection.plan_size": "does nothing where all batches have one size",
    "Selection.restore": "called by `load_state_dict`, with what `check_state` has checked",
    "ShuffledEpochs.check_state": "called by `load_state_dict`",
    "Task.losses": "called by runs, with their own models and batches",
    "Task.predictions": "as `Task.losses`",
    "Task.prepared": "called by runs, with a seed that the experiment has checked",
    "Window.check_state": "called by `load_state_dict`",
}


ROOMS = (adamcb, selection, data, training, gradnorm, optim, theory, paper, lab)


def public(kind: Callable[[Any], bool]) -> list[Any]:
    """Return all public things of a kind. (Not by `vars`: names are imported when they are asked for.)"""
    found = [getattr(room, name) for room in ROOMS for name in getattr(room, "__all__", vars(room))]
    return [entry for entry in found if kind(entry)]


def listed_names() -> set[str]:
    return {".".join(name.split(".")[-2:]) for name in CASES} | {name.split(".")[-1] for name in CASES}


def test_the_table_has_every_public_function_with_arguments():
    assert public(inspect.isfunction)
    for function in public(inspect.isfunction):
        if inspect.signature(function).parameters:
            name = function.__name__
            assert name in {*listed_names(), *WITHOUT}, f"{function.__module__}.{name} is not in the table"


def test_the_table_has_every_public_method_with_arguments():
    names = listed_names()
    assert adamcb.AdamX in public(inspect.isclass)
    for cls in public(inspect.isclass):
        family = [base.__name__ for base in cls.__mro__ if base.__module__.startswith("adamcb")]
        for name, member in inspect.getmembers(cls, inspect.isroutine):
            if name.startswith("_") or not (getattr(member, "__module__", None) or "").startswith("adamcb"):
                continue
            if not set(inspect.signature(member).parameters) - {"self"}:
                continue
            listed = {f"{base}.{name}" for base in family}
            assert listed & {*names, *WITHOUT} or {*family} & {*WITHOUT}, f"{cls.__name__}.{name} is not in the table"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True}, "`shuffle` must not be given, .* leave it out"),
        ({"sampler": [1]}, "`sampler` must not be given, .* pass it as `selection`"),
        ({"drop_last": False}, "`drop_last` must not be given, .* leave it out"),
        ({"rank": 1}, "`rank` must not be given, .* the process group"),
        ({"dataset": DataLoader(dataset())}, "`dataset` must be a dataset, got a DataLoader. .* `loader.dataset`"),
        ({"optimizer": torch.optim.AdamW}, "got AdamW: build it first"),
        ({"model": model().parameters()}, "Pass the model, not its parameters"),
        ({"model": None}, "`model` must be a torch.nn.Module, got model of type NoneType"),
    ],
)
def test_what_torch_users_try_is_answered(options, message):
    with pytest.raises(TypeError, match=message):
        adamcb.AdamCB(**{**trained(), **options})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_is_attached_to_a_model_refuses_to_be_copied(copied):
    for attached in (trainer(), adamcb.PerSampleNorms(model())):
        with pytest.raises(TypeError, match="must not be copied or pickled"):
            copied(attached)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_of_a_selection_goes_on_as_the_original_does(copied):
    for made in (bandit(), adamcb.QueueBandit(N, K, generator=seeded()), adamcb.UniformSelection(N, K)):
        made.update(made.draw(), [1.0, 2.0])
        twin = copied(made)
        for _ in range(5):
            draws = [one.draw() for one in (made, twin)]
            assert draws[0].indices.tolist() == draws[1].indices.tolist()
            made.update(draws[0], [0.1, 3.0])
            twin.update(draws[1], [0.1, 3.0])
