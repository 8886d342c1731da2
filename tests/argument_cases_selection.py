"""Selections and all that they are made of: what each argument may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import adamcb
from adamcb import selection
from adamcb._checks import MOST_SAMPLES
from tests.argument_case import GENERATOR, GOOD_SIZES, OF_A_BANDIT, Case, K, N, bandit, seeded
from tests.argument_kinds import Kind, function, integer, nothing_else, optional, real, vector, word


def queue() -> adamcb.QueueBandit:
    return adamcb.QueueBandit(N, K, generator=seeded())


def adambs() -> adamcb.ReplacementBandit:
    return adamcb.ReplacementBandit(N, K, generator=seeded())


def uniform() -> adamcb.UniformSelection:
    return adamcb.UniformSelection(N, K, generator=seeded())


def weighted() -> adamcb.WeightedSelection:
    return adamcb.WeightedSelection([1.0, 2.0, 3.0, 4.0], K, generator=seeded())


def sharded() -> selection.Stratum:
    inner = adamcb.UniformSelection(N // 2, K, generator=seeded())
    return selection.Stratum(inner, N, number=0, num_strata=2)


def scored(make: Callable[[], adamcb.Selection]) -> dict[str, Any]:
    """Return a draw of such a selection, and scores for it."""
    return {"draw": make().draw(), "scores": [1.0, 2.0]}


def some_weights() -> dict[str, Any]:
    return {"indices": [0, 1], "weights": [1.0, 2.0]}


def assign_weights(subject: Any, weights: Any) -> None:
    subject.weights = weights


def weights_sum_to_an_integer(values: np.ndarray) -> bool:
    return bool(values.max(initial=0.0) <= 1.0 and abs(values.sum() - round(values.sum())) <= 1e-6)


SCORED: dict[str, Kind] = {"draw": nothing_else, "scores": vector(K)}
SOME_WEIGHTS: dict[str, Kind] = {
    "indices": lambda value: None if vector(K)(value) else False,
    "weights": lambda value: None if vector(K)(value) else False,
}

SELECTION_CASES: dict[str, Case] = {
    "Selection": Case(
        adamcb.Selection,
        {**OF_A_BANDIT, "min_batch_size": optional(integer(1, K))},
        lambda: GOOD_SIZES,
    ),
    "CombinatorialBandit": Case(
        adamcb.CombinatorialBandit,
        {
            **OF_A_BANDIT,
            "min_batch_size": optional(integer(1, K)),
            "size_multiple": integer(1, K),
            "exploration": real(0.0, 1.0),
            "feedback": word("scale-free", "proof", "listing"),
            "gate": optional(nothing_else),
        },
        lambda: GOOD_SIZES,
    ),
    "QueueBandit": Case(
        adamcb.QueueBandit,
        {
            **OF_A_BANDIT,
            "min_batch_size": optional(integer(1, K)),
            "size_multiple": integer(1, K),
            "exploration": real(0.0, 1.0, low_open=True),
            "feedback": word("scale-free", "proof", "listing"),
        },
        lambda: GOOD_SIZES,
    ),
    "ReplacementBandit": Case(
        adamcb.ReplacementBandit,
        {
            **OF_A_BANDIT,
            "exploration": real(0.0, 1.0),
            "form": word("corrected", "original"),
            "max_norm": optional(real(0.0, low_open=True)),
        },
        lambda: GOOD_SIZES,
    ),
    "ReplacementSelection": Case(
        selection.ReplacementSelection, {**OF_A_BANDIT, "exploration": real(0.0, 1.0)}, lambda: GOOD_SIZES
    ),
    "UniformSelection": Case(adamcb.UniformSelection, OF_A_BANDIT, lambda: GOOD_SIZES),
    "WeightedSelection": Case(
        adamcb.WeightedSelection,
        {"weights": vector(least=K), "batch_size": integer(1, 4), "generator": GENERATOR},
        lambda: {"weights": [1.0, 2.0, 3.0, 4.0], "batch_size": K},
    ),
    "Stratum": Case(
        selection.Stratum,
        {
            "selection": nothing_else,
            "num_samples": integer(11, 12),
            "number": integer(0, 1),
            "num_strata": lambda value: None if integer(2, 2)(value) else False,
        },
        lambda: {"selection": adamcb.UniformSelection(6, 2), "num_samples": N, "number": 0, "num_strata": 2},
    ),
    "Strata": Case(
        selection.Strata,
        {"strata": nothing_else, "agree": optional(function)},
        lambda: {
            "strata": [selection.Stratum(adamcb.UniformSelection(6, 2), N, number=0, num_strata=2)],
        },
    ),
    "stratum_size": Case(
        selection.stratum_size,
        {"num_samples": integer(1, MOST_SAMPLES), "number": integer(0, 3), "num_strata": integer(1)},
        lambda: {"num_samples": N, "number": 0, "num_strata": 4},
    ),
    "ShuffledEpochs": Case(
        selection.ShuffledEpochs,
        {"num_samples": integer(1, MOST_SAMPLES), "generator": nothing_else},
        lambda: {"num_samples": N, "generator": seeded()},
    ),
    "ShuffledEpochs.take": Case(
        selection.ShuffledEpochs.take,
        {"count": integer(0, N)},
        lambda: {"count": 2},
        subject=lambda: selection.ShuffledEpochs(N, seeded()),
    ),
    "Gate": Case(selection.Gate, {"min_gain": real(0.0, 1.0, low_open=True)}),
    "Gate.is_open": Case(
        selection.Gate.is_open,
        {"moment": nothing_else, "progress": real(0.0)},
        lambda: {"moment": selection.SecondMoment(), "progress": 0.5},
        subject=selection.Gate,
        state=repr,
    ),
    "ScaleFree": Case(
        selection.ScaleFree,
        {
            "rate": real(0.0, low_open=True),
            "bound": real(0.0, low_open=True),
            "memory": real(0.0, 1.0, high_open=True),
        },
    ),
    "ProofFeedback": Case(selection.ProofFeedback, {"max_norm": optional(real(0.0, low_open=True))}),
    "ListingFeedback": Case(selection.ListingFeedback, {"max_norm": optional(real(0.0, low_open=True))}),
    "SecondMoment": Case(
        selection.SecondMoment,
        {"memory": real(0.0, 1.0, high_open=True), "record_memory": optional(real(0.0, 1.0, high_open=True))},
    ),
    "SecondMoment.note": Case(
        selection.SecondMoment.note,
        {"scores": vector(2), "draw_probs": vector(2, least=2), "probs": optional(vector(2))},
        lambda: {"scores": [1.0, 2.0], "draw_probs": [0.5, 0.5]},
        subject=selection.SecondMoment,
    ),
    "SecondMoment.ratio_to": Case(
        selection.SecondMoment.ratio_to,
        {"num_samples": integer(1, MOST_SAMPLES), "batch_size": integer(1, 10**15)},
        lambda: GOOD_SIZES,
        subject=selection.SecondMoment,
    ),
    "depround": Case(
        adamcb.depround,
        {"inclusion_probs": vector(check=weights_sum_to_an_integer), "generator": GENERATOR},
        lambda: {"inclusion_probs": [0.5, 0.5], "generator": seeded()},
    ),
    "Selection.make_draw": Case(
        adamcb.Selection.make_draw,
        {
            "indices": lambda value: None if vector(K)(value) else False,
            "probs": lambda value: None if not isinstance(value, (str, bytes, dict, set)) else False,
            "loss_weights": lambda value: None if not isinstance(value, (str, bytes, dict, set)) else False,
        },
        lambda: {"indices": [1, 2], "probs": 0.5, "loss_weights": None},
        subject=bandit,
    ),
    "CombinatorialBandit.update": Case(adamcb.CombinatorialBandit.update, SCORED, lambda: scored(bandit), bandit),
    "QueueBandit.update": Case(adamcb.QueueBandit.update, SCORED, lambda: scored(queue), queue),
    "ReplacementBandit.update": Case(adamcb.ReplacementBandit.update, SCORED, lambda: scored(adambs), adambs),
    "Selection.update": Case(adamcb.Selection.update, SCORED, lambda: scored(uniform), uniform),
    "Selection.check": Case(adamcb.Selection.check, SCORED, lambda: scored(uniform), uniform),
    "QueueBandit.weights": Case(assign_weights, {"weights": vector(N, least=1)}, lambda: {"weights": [1.0] * N}, queue),
    "CombinatorialBandit.weights": Case(
        assign_weights, {"weights": vector(N, least=1)}, lambda: {"weights": [1.0] * N}, bandit
    ),
    "ReplacementBandit.weights": Case(
        assign_weights, {"weights": vector(N, least=1)}, lambda: {"weights": [1.0] * N}, adambs
    ),
    "WeightedSelection.weights": Case(
        assign_weights, {"weights": vector(4, least=K)}, lambda: {"weights": [1.0] * 4}, weighted
    ),
    "WeightedSelection.set_weights": Case(adamcb.WeightedSelection.set_weights, SOME_WEIGHTS, some_weights, weighted),
    "ReplacementSelection.set_weights": Case(
        selection.ReplacementSelection.set_weights,
        SOME_WEIGHTS,
        some_weights,
        lambda: selection.ReplacementSelection(N, K, generator=seeded()),
    ),
    "QueueBandit.plan_size": Case(adamcb.QueueBandit.plan_size, {"needed": real(0.0)}, lambda: {"needed": 1.5}, queue),
    "CombinatorialBandit.plan_size": Case(
        adamcb.CombinatorialBandit.plan_size, {"needed": real(0.0)}, lambda: {"needed": 1.5}, bandit
    ),
    "Selection.load_state_dict": Case(
        adamcb.Selection.load_state_dict, {"state": nothing_else}, lambda: {"state": bandit().state_dict()}, bandit
    ),
    "Stratum.load_state_dict": Case(
        selection.Stratum.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": sharded().state_dict()},
        sharded,
    ),
    "Strata.load_state_dict": Case(
        selection.Strata.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": selection.Strata([sharded()]).state_dict()},
        lambda: selection.Strata([sharded()]),
    ),
    "ShuffledEpochs.load_state_dict": Case(
        selection.ShuffledEpochs.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": selection.ShuffledEpochs(N, seeded()).state_dict()},
        lambda: selection.ShuffledEpochs(N, seeded()),
    ),
    "SecondMoment.is_below": Case(
        selection.SecondMoment.is_below,
        {"share": real(-math.inf)},
        lambda: {"share": 0.5},
        subject=selection.SecondMoment,
    ),
    "SecondMoment.load_state_dict": Case(
        selection.SecondMoment.load_state_dict,
        {"state": nothing_else},
        lambda: {"state": selection.SecondMoment().state_dict()},
        subject=selection.SecondMoment,
    ),
}
