"""What a line of the table of arguments is, and what several of its lines are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import adamcb
from adamcb._checks import MOST_SAMPLES
from tests.argument_kinds import Kind, integer, nothing_else, optional
from tests.training.problem import plain

N, K = 12, 2


def dataset() -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 3, generator=source), torch.arange(N) % 2)


def model() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 2)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def bandit() -> adamcb.CombinatorialBandit:
    return adamcb.CombinatorialBandit(N, K, generator=seeded())


SIZES: dict[str, Kind] = {"num_samples": integer(K, MOST_SAMPLES), "batch_size": integer(1, N)}
GENERATOR = optional(nothing_else)
OF_A_BANDIT = {**SIZES, "generator": GENERATOR}
GOOD_SIZES = {"num_samples": N, "batch_size": K}


@dataclass
class Case:
    """Something public that takes arguments.

    Attributes:
        call: Called with a subject and the arguments.
        kinds: What each argument may be.
        good: Returns arguments that work.
        subject: Returns what a method is called on; None: `call` is a function or a class.
        state: What a refused call on the subject must not change.
        done: Called with what came out.
    """

    call: Callable[..., Any]
    kinds: dict[str, Kind]
    good: Callable[[], dict[str, Any]] = dict
    subject: Callable[[], Any] | None = None
    state: Callable[[Any], Any] = field(default=lambda subject: plain(subject.state_dict()))
    done: Callable[[Any], Any] = field(default=lambda result: None)
    left_out: tuple[str, ...] = ()  # arguments that other cases have
