"""Every public constructor, function and method, and what each of its arguments may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import adamcb
from adamcb import paper, theory
from adamcb._checks import LARGEST_SEED, MOST_SAMPLES
from adamcb.data import Window, part_of, whole_of
from adamcb.lab import Method, Metric, Task
from adamcb.optim import check_optimizer_state
from adamcb.training import (
    Meter,
    Ranks,
    SampleTable,
    gather_scores,
    generator_states,
    generators_part,
    read_checkpoint,
    set_generator_states,
    write_checkpoint,
)
from tests.argument_case import GOOD_SIZES, Case, K, N, bandit, dataset, model
from tests.argument_cases_lab import LAB_CASES
from tests.argument_cases_selection import SELECTION_CASES
from tests.argument_kinds import (
    Kind,
    flag,
    function,
    holds_numbers,
    integer,
    nothing_else,
    optional,
    rate,
    real,
    rising,
    two_shares,
    unknown,
    vector,
    word,
)
from tests.training.problem import losses_of, plain


def close(trainer: Any) -> None:
    trainer.close()


def trained() -> dict[str, Any]:
    return {"model": model(), "dataset": dataset(), "batch_size": K}


def trainer() -> adamcb.AdamCB:
    return adamcb.AdamCB(model(), dataset(), K, 0.01)


def waiting() -> adamcb.AdamCB:
    """Return a trainer that waits for losses."""
    made = trainer()
    x, y = next(iter(made))
    losses_of(made.model, x, y)
    return made


def table() -> SampleTable:
    """Return what a trainer saw of its samples."""
    with adamcb.AdamCB(model(), dataset(), K, record_samples=True) as made:
        for x, y in made:
            made.step(losses_of(made.model, x, y))
        return made.samples()


def a_path(value: Any) -> bool | None:
    return None if isinstance(value, str) and value else False


def a_device(value: Any) -> bool | None:
    return None if isinstance(value, (str, int)) and not isinstance(value, bool) else False


def floats(*shape: int) -> Kind:
    """A tensor of floats of this shape."""
    return lambda value: (
        isinstance(value, torch.Tensor) and holds_numbers(value) and value.is_floating_point() and value.shape == shape
    )


def logistic() -> theory.LogisticProblem:
    return theory.LogisticProblem(torch.linspace(-1, 1, N)[:, None], torch.arange(N) % 2, penalty=0.1)


LOADER: dict[str, Kind] = {
    "num_workers": integer(0, 1024),
    "collate_fn": optional(function),
    "pin_memory": flag,
    "timeout": real(0.0, 0.0),
    "worker_init_fn": optional(function),
    "multiprocessing_context": optional(nothing_else),
    "prefetch_factor": optional(nothing_else),
    "persistent_workers": lambda value: flag(value) and not value,
    "pin_memory_device": lambda value: None if isinstance(value, str) else False,
    "in_order": flag,
    "seed": integer(0, LARGEST_SEED),
    "stateful": lambda value: None if flag(value) else False,
}
ADAPTIVE: dict[str, Kind] = {
    "model": nothing_else,
    "dataset": unknown,
    "batch_size": integer(1, N),
    "min_batch_size": optional(integer(1, K)),
    "selection": optional(nothing_else),
    "scores": lambda value: word("last-layer", "exact", "losses")(value) or callable(value),
    "device": lambda value: True if value is None else None if isinstance(value, (str, int)) else False,
    "feedback_delay": optional(integer(0, 10_000)),
    "sharded": lambda value: flag(value) or (None if integer(1)(value) else False),
    "record_samples": flag,
    "observers": lambda value: isinstance(value, (list, tuple, dict)) and not value,
    **LOADER,
}
ADAMX: dict[str, Kind] = {
    "params": lambda value: None if isinstance(value, (list, torch.Tensor)) else False,
    "lr": rate,
    "betas": two_shares,
    "eps": real(0.0),
    "beta1_decay": real(0.0, 1.0, low_open=True),
    "bias_correction": flag,
    "weight_decay": real(0.0),
    "maximize": flag,
    "foreach": optional(flag),
    "fused": optional(flag),
    "capturable": flag,
    "differentiable": flag,
}
PAPER: dict[str, Kind] = {
    "model": nothing_else,
    "dataset": unknown,
    "batch_size": integer(1, N),
    "lr": rate,
    "exploration": real(0.0, 1.0),
    "max_norm": optional(real(0.0, low_open=True)),
    "seed": integer(0, LARGEST_SEED),
}
BOUND: dict[str, Kind] = {
    "method": word("uniform", "adambs", "adamcb"),
    "num_samples": integer(K, MOST_SAMPLES),
    "batch_size": integer(1, N),
    "steps": integer(1, 10**15),
    "dimension": integer(1, 10**15),
    "max_norm": real(0.0, 1e100),
    "diameter": real(0.0, 1e100),
    "lr": real(1e-100, 1e100),
    "exploration": optional(real(1e-100, 1.0)),
    "betas": lambda value: two_shares(value) and value[0] ** 2 < value[1] and None,
    "beta1_decay": real(0.0, 1.0, low_open=True, high_open=True),
    "eps": real(1e-100, 1e100),
    "mean_norm": optional(real(0.0, 1e100)),
    "norm_std": optional(real(0.0, 1e100)),
}
GOOD_BOUND = {"steps": 10, "dimension": 4, "max_norm": 1.0, "diameter": 1.0, "lr": 0.1}


def of_bounds(*names: str) -> dict[str, Kind]:
    return {name: BOUND[name] for name in names}


CASES: dict[str, Case] = {
    **SELECTION_CASES,
    **LAB_CASES,
    "Selection.check_draw": Case(
        adamcb.Selection.check_draw, {"draw": nothing_else}, lambda: {"draw": bandit().draw()}, bandit
    ),
    "data.part_of": Case(
        part_of,
        {"draw": nothing_else, "rank": integer(0, 0), "num_ranks": integer(1)},
        lambda: {"draw": bandit().draw(), "rank": 0, "num_ranks": 1},
    ),
    "data.whole_of": Case(whole_of, {"draw": nothing_else}, lambda: {"draw": bandit().draw()}),
    "data.Window": Case(
        Window,
        {
            "stream": unknown,
            "size": integer(1, MOST_SAMPLES),
            "passes": lambda value: None if integer(1)(value) else False,  # must divide `size`
        },
        lambda: {"stream": range(100), "size": N, "passes": 1},
    ),
    "data.Window.load_state_dict": Case(
        Window.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": Window(range(100), N).state_dict()},
        lambda: Window(range(100), N),
    ),
    "BanditLoader": Case(
        adamcb.BanditLoader,
        {**LOADER, "dataset": unknown, "selection": nothing_else, "rank": integer(0, 0), "num_ranks": integer(1, K)},
        lambda: {"dataset": dataset(), "selection": bandit()},
    ),
    "BanditLoader.load_state_dict": Case(
        adamcb.BanditLoader.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": adamcb.BanditLoader(dataset(), bandit()).state_dict()},
        lambda: adamcb.BanditLoader(dataset(), bandit()),
    ),
    "SelectedBatch": Case(
        adamcb.SelectedBatch, {"data": unknown, "draw": nothing_else}, lambda: {"data": 1, "draw": bandit().draw()}
    ),
    "SelectedBatch.to": Case(
        adamcb.SelectedBatch.to,
        {"device": lambda value: None if isinstance(value, (str, int)) else False, "non_blocking": flag},
        lambda: {"device": "cpu"},
        subject=lambda: adamcb.SelectedBatch(torch.zeros(2), bandit().draw()),
        state=repr,
    ),
    "PerSampleNorms": Case(
        adamcb.PerSampleNorms,
        {
            "model": nothing_else,
            "mode": word("exact", "last-layer"),
            "check": word("auto", "always", "never"),
            "samples": optional(function),
        },
        lambda: {"model": model()},
        done=close,
    ),
    "PerSampleNorms.compare": Case(
        adamcb.PerSampleNorms.compare,
        {"losses": lambda value: isinstance(value, torch.Tensor) and value.dim() == 1, "first": integer(1)},
        lambda: {"losses": torch.ones(K)},
        subject=lambda: adamcb.PerSampleNorms(model(), mode="last-layer"),
        state=lambda subject: subject.passes,
    ),
    "PerSampleNorms.is_done": Case(
        adamcb.PerSampleNorms.is_done,
        {"until": integer(-(10**500)), "first": integer(-(10**500))},
        lambda: {"until": 1},
        subject=lambda: adamcb.PerSampleNorms(model()),
        state=lambda subject: subject.passes,
    ),
    "PerSampleNorms.load_state_dict": Case(
        adamcb.PerSampleNorms.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": adamcb.PerSampleNorms(model()).state_dict()},
        lambda: adamcb.PerSampleNorms(model()),
    ),
    "register_rule": Case(
        adamcb.register_rule,
        {"operation": lambda value: bool(value) if isinstance(value, str) else None, "rule": function},
        lambda: {"operation": "a name that no operation has", "rule": len},
    ),
    "AdamX": Case(adamcb.AdamX, ADAMX, lambda: {"params": model().parameters()}),
    "AdamX.load_state_dict": Case(
        lambda subject, state: subject.load_state_dict(state),
        {"state": nothing_else},
        lambda: {"state": adamcb.AdamX(model().parameters()).state_dict()},
        lambda: adamcb.AdamX(model().parameters()),
    ),
    "check_optimizer_state": Case(
        check_optimizer_state,
        {"optimizer": nothing_else, "state": nothing_else},
        lambda: {
            "optimizer": adamcb.AdamX(model().parameters()),
            "state": adamcb.AdamX(model().parameters()).state_dict(),
        },
    ),
    "AdamX.add_param_group": Case(
        lambda subject, param_group: subject.add_param_group(param_group),
        {"param_group": nothing_else},
        lambda: {"param_group": {"params": model().parameters()}},
        lambda: adamcb.AdamX(model().parameters()),
    ),
    "inverse_sqrt": Case(
        adamcb.inverse_sqrt, {"optimizer": nothing_else}, lambda: {"optimizer": adamcb.AdamX(model().parameters())}
    ),
    "AdaptiveLoader": Case(adamcb.AdaptiveLoader, ADAPTIVE, trained, done=close),
    "AdamCB": Case(
        adamcb.AdamCB,
        {
            **ADAPTIVE,
            "lr": optional(rate),
            "optimizer": optional(nothing_else),
            "betas": optional(two_shares),
            "eps": optional(real(0.0)),
            "weight_decay": optional(real(0.0)),
        },
        trained,
        done=close,
    ),
    "AdaptiveLoader.weigh": Case(
        adamcb.AdaptiveLoader.weigh,
        {"losses": unknown, "draw": optional(nothing_else)},
        lambda: {"losses": torch.ones(K, requires_grad=True)},
        waiting,
        lambda subject: plain(subject.selection.state_dict()),
    ),
    "AdamCB.step": Case(
        adamcb.AdamCB.step,
        {"losses": unknown, "draw": optional(nothing_else)},
        lambda: {"losses": torch.ones(K, requires_grad=True)},
        waiting,
        lambda subject: plain(subject.selection.state_dict()),
    ),
    "AdaptiveLoader.load_state_dict": Case(
        adamcb.AdaptiveLoader.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": adamcb.AdaptiveLoader(**trained()).state_dict()},
        lambda: adamcb.AdaptiveLoader(**trained()),
    ),
    "AdamCB.load_state_dict": Case(
        adamcb.AdamCB.load_state_dict, {"state": nothing_else}, lambda: {"state": trainer().state_dict()}, trainer
    ),
    "AdamCB.load": Case(adamcb.AdamCB.load, {"path": a_path}, subject=trainer, good=lambda: {"path": "/there/is/none"}),
    "AdamCB.save": Case(
        adamcb.AdamCB.save,
        {
            "path": a_path,
            "check": lambda value: None if flag(value) else False,
        },
        lambda: {"path": "/there/is/none"},
        trainer,
        left_out=("extra",),
    ),
    "read_checkpoint": Case(read_checkpoint, {"path": a_path}, lambda: {"path": "/there/is/none"}),
    "write_checkpoint": Case(
        write_checkpoint,
        {
            "path": a_path,
            "save_id": lambda value: None if value is None else False,
            "check": lambda value: None if flag(value) else False,
        },
        lambda: {"path": "/there/is/none", "state": {}},
        left_out=("state", "extra"),
    ),
    "Meter": Case(
        Meter,
        {"num_samples": integer(1, MOST_SAMPLES), "batch_size": integer(1, 10**15)},
        lambda: GOOD_SIZES,
    ),
    "Meter.load_state_dict": Case(
        Meter.load_state_dict, {"state": nothing_else}, lambda: {"state": Meter(N, K).state_dict()}, lambda: Meter(N, K)
    ),
    "SampleTable.top": Case(SampleTable.top, {"k": integer(0)}, lambda: {"k": 1}, table, state=repr),
    "SampleTable.to_csv": Case(SampleTable.to_csv, {"path": a_path}, lambda: {"path": "a.csv"}, table, state=repr),
    "Ranks.check_batch_size": Case(
        Ranks.check_batch_size,
        {"batch_size": lambda value: integer(1)(value) and int(value) % 2 == 0},
        lambda: {"batch_size": 2},
        lambda: Ranks(size=2, rank=0),
        state=repr,
    ),
    "Ranks": Case(Ranks, {"rank": integer(0, 3), "size": integer(1)}, lambda: {"size": 4, "rank": 0}),
    "gather_scores": Case(
        gather_scores,
        {
            "ranks": nothing_else,
            "draw": nothing_else,
            "measured": optional(floats(K)),
            "arrived": floats(K),
            "losses": floats(K),
            "loss": floats(),
        },
        lambda: {
            "ranks": Ranks(),
            "draw": bandit().draw(),
            "measured": torch.ones(K),
            "arrived": torch.ones(K),
            "losses": torch.ones(K),
            "loss": torch.tensor(1.0),
        },
    ),
    "generator_states": Case(generator_states, {"device": a_device}, lambda: {"device": "cpu"}),
    "set_generator_states": Case(
        set_generator_states,
        {"device": a_device, "states": nothing_else},
        lambda: {"device": "cpu", "states": generator_states(torch.device("cpu"))},
    ),
    "generators_part": Case(
        generators_part, {"device": a_device, "rank": integer(0)}, lambda: {"device": "cpu", "rank": 0}
    ),
    "paper.adamcb": Case(paper.adamcb, {**PAPER, "listing": flag}, trained, done=close),
    "paper.adambs": Case(paper.adambs, PAPER, trained, done=close),
    "paper.adambs_original": Case(paper.adambs_original, PAPER, trained, done=close),
    "paper.adamx": Case(
        paper.adamx, {name: ADAMX[name] for name in ("params", "lr")}, lambda: {"params": model().parameters()}
    ),
    "theory.exploration": Case(
        theory.exploration,
        {**of_bounds("num_samples", "batch_size", "steps"), "method": word("adambs", "adamcb")},
        lambda: {**GOOD_SIZES, "steps": 10},
    ),
    "theory.constants": Case(
        theory.constants,
        {
            **of_bounds("steps", "dimension", "max_norm", "diameter", "lr", "betas", "beta1_decay"),
            "exploration": real(1e-100, 1.0),
        },
        lambda: {**GOOD_BOUND, "exploration": 0.5},
    ),
    "theory.regret_bound": Case(
        theory.regret_bound, BOUND, lambda: {**GOOD_BOUND, **GOOD_SIZES, "method": "adamcb", "exploration": 0.5}
    ),
    "theory.regret_order": Case(
        theory.regret_order,
        of_bounds("method", "num_samples", "batch_size", "steps", "dimension"),
        lambda: {**GOOD_SIZES, "method": "adamcb", "steps": 10, "dimension": 4},
    ),
    "theory.bandit_regret": Case(
        theory.bandit_regret,
        {
            **of_bounds("num_samples", "batch_size", "steps"),
            "method": word("adambs", "adamcb"),
            "exploration": real(1e-100, 1.0),
        },
        lambda: {**GOOD_SIZES, "method": "adamcb", "steps": 10, "exploration": 0.5},
    ),
    "theory.interval": Case(
        theory.interval,
        {"values": lambda value: None if vector()(value) else False},
        lambda: {"values": [1.0]},
    ),
    "theory.growth_exponent": Case(
        theory.growth_exponent,
        {"across": lambda value: None if vector(2, least=2)(value) else False, "values": unknown},
        lambda: {"across": [1.0, 2.0], "values": [[1.0, 2.0]]},
    ),
    "theory.second_moment": Case(
        theory.second_moment,
        {"norms": vector(2), "probs": vector(2, least=2)},
        lambda: {"norms": [1.0, 2.0], "probs": [0.5, 0.5]},
    ),
    "theory.best_probs": Case(
        theory.best_probs,
        {"norms": vector(least=1), "batch_size": integer(1, 2), "exploration": real(0.0, 1.0)},
        lambda: {"norms": [1.0, 2.0], "batch_size": 1},
    ),
    "theory.scale_free_step": Case(
        theory.scale_free_step,
        {
            "weights": vector(2, least=2),
            "norms": vector(2, least=1),
            "batch": unknown,
            "batch_size": integer(1, 2),
            "exploration": real(0.0, 1.0, high_open=True),
            "rate": real(0.0, 1e100),
            "level": word("weights", "batch"),
        },
        lambda: {"weights": [1.0, 1.0], "norms": [1.0, 2.0], "batch": [0], "batch_size": 1},
    ),
    "theory.descent_constant": Case(theory.descent_constant, {"rate": real(0.0, 0.5)}, lambda: {"rate": 0.3}),
    "theory.LogisticProblem": Case(
        theory.LogisticProblem,
        {"features": nothing_else, "labels": unknown, "penalty": real(0.0, low_open=True)},
        lambda: {"features": torch.zeros(3, 1), "labels": torch.tensor([0, 1, 1])},
    ),
    "theory.LogisticProblem.subset": Case(
        theory.LogisticProblem.subset, {"num_samples": integer(1, N)}, lambda: {"num_samples": 4}, logistic, state=repr
    ),
    "theory.LogisticProblem.norm_bound": Case(
        theory.LogisticProblem.norm_bound, {"radius": real(0.0, 1e100)}, lambda: {"radius": 1.0}, logistic, state=repr
    ),
    "theory.LogisticProblem.evaluate": Case(
        theory.LogisticProblem.evaluate,
        {"params": nothing_else},
        lambda: {"params": torch.zeros(2, 2, dtype=torch.float64)},
        logistic,
        state=repr,
        left_out=("indices",),
    ),
    "theory.LogisticProblem.minimize": Case(
        theory.LogisticProblem.minimize,
        {"sample_weights": optional(nothing_else), "start": optional(nothing_else), "tolerance": real(1e-13)},
        subject=logistic,
        state=repr,
    ),
    "theory.measure_regret": Case(
        theory.measure_regret,
        {
            "problem": nothing_else,
            "selection": nothing_else,
            "horizons": lambda value: None if rising(value) or isinstance(value, (np.ndarray, torch.Tensor)) else False,
            "lr": real(0.0, 1e100),
            "betas": two_shares,
            "beta1_decay": real(0.0, 1.0, low_open=True),
            "eps": real(0.0, low_open=True),
            "every": integer(1, 10**15),
            "minimum": optional(nothing_else),
        },
        lambda: {
            "problem": logistic(),
            "selection": bandit(),
            "horizons": [2],
        },
    ),
    "Task": Case(
        Task,
        {
            "name": lambda value: None if isinstance(value, str) and value else False,
            "model": function,
            "train": unknown,
            "test": unknown,
            "loss": optional(function),
            "predict": optional(function),
            "metrics": lambda value: None if value is None or isinstance(value, dict) else False,
            "batch_size": integer(1, 10**15),
            "lr": real(0.0, low_open=True),
            "schedule": word("constant", "inverse-sqrt", "cosine"),
            "scores": lambda value: value is None or callable(value) or word("exact", "losses")(value),
            "epochs": integer(1, 10**15),
            "optimizer": word("adam", "adamw", "sgd", "adamx"),
            "weight_decay": real(0.0),
        },
        lambda: {"name": "mine", "model": model, "train": dataset(), "test": dataset()},
    ),
    "Metric": Case(
        Metric, {"function": function, "better": word("higher", "lower"), "percent": flag}, lambda: {"function": len}
    ),
    "Method": Case(
        Method,
        {
            "name": lambda value: None if isinstance(value, str) else False,
            "label": lambda value: isinstance(value, str),
            "selection": optional(function),
            "optimizer": optional(function),
            "loss": optional(function),
            "scores": lambda value: value is None or callable(value) or word("exact", "losses")(value),
            "lr": optional(real(0.0, low_open=True)),
            "exploration": optional(real(0.0, 1.0)),
            "min_batch_size": optional(integer(1, 10**15)),
            "about": lambda value: isinstance(value, str),
            "link": lambda value: isinstance(value, str),
            "needs": lambda value: isinstance(value, (tuple, list)) and not value,
        },
        lambda: {"name": "mine"},
    ),
}
