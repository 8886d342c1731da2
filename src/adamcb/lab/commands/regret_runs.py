"""One run of `adamcb regret`: its method, its regret at every horizon, and the bounds for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from adamcb import _checks
from adamcb.selection import CombinatorialBandit, ProofFeedback, ReplacementBandit, Selection, UniformSelection
from adamcb.theory import (
    REGRET_FIELDS,
    LogisticProblem,
    Minimum,
    Regret,
    constants,
    exploration,
    measure_regret,
    regret_bound,
)

BETAS = (0.9, 0.999)
EPS = 1e-8
# Where parameters are sure to stay: ‖θ‖ is around 10 at the minimizer.
RADIUS = 1000.0
# Of what `theory` divides by.
_LEAST = 1e-100
BOUNDS = ("lemma1", "bound", "bound_known", "bound_printed")
COLUMNS = ("sweep", "method", "seed", "num_samples", "batch_size", "exploration", *REGRET_FIELDS, *BOUNDS)


@dataclass(frozen=True)
class Settings:
    """What all runs share: γ (None: Lemma 2's), α, λ, μ, and how often the full loss is evaluated."""

    exploration: float | None
    lr: float
    beta1_decay: float
    penalty: float
    every: int

    def __post_init__(self) -> None:
        if self.exploration is not None:
            _checks.magnitude("exploration", self.exploration, low=_LEAST, high=1.0)
        _checks.magnitude("lr", self.lr, low=_LEAST)
        _checks.real("beta1_decay", self.beta1_decay, low=0.0, high=1.0, low_open=True, high_open=True)
        _checks.magnitude("penalty", self.penalty, low=_LEAST)
        _checks.count("every", self.every)


@dataclass(frozen=True)
class RegretMethod:
    """A way to choose batches.

    Attributes:
        label: What it is called in figures and tables.
        build: Called with (num_samples, batch_size, exploration=..., max_norm=..., generator=...).
        lemma: Whose lemma sets γ, "adamcb" or "adambs"; None: γ is 1.
        theorem: Whose theorem bounds its regret; None: there is none.
        knows_norm: Whether it is given L.
    """

    label: str
    build: Callable[..., Selection]
    lemma: str | None = None
    theorem: str | None = None
    knows_norm: bool = False

    def gamma(self, num_samples: int, batch_size: int, steps: int, settings: Settings) -> float:
        """Return γ for a horizon."""
        if self.lemma is None:
            return 1.0
        if settings.exploration is not None:
            return settings.exploration
        return exploration(num_samples, batch_size, steps, method=self.lemma)


def _reshuffled(n: int, k: int, *, exploration: float, max_norm: None, generator: torch.Generator) -> Selection:
    return UniformSelection(n, k, generator=generator)


def _paper(n: int, k: int, *, exploration: float, max_norm: float | None, generator: torch.Generator) -> Selection:
    settings = {"exploration": exploration, "generator": generator}
    return CombinatorialBandit(n, k, feedback=ProofFeedback(max_norm), gate=None, **settings)


def _scale_free(n: int, k: int, *, exploration: float, max_norm: None, generator: torch.Generator) -> Selection:
    return CombinatorialBandit(n, k, exploration=exploration, gate=None, generator=generator)


METHODS = {
    # With exploration 1 every draw is uniform, and no draw knows of another, as the theorem for uniform sampling
    # assumes.
    "uniform": RegretMethod("uniform", _paper, theorem="uniform"),
    "reshuffled": RegretMethod("reshuffled epochs", _reshuffled),
    "adambs": RegretMethod("AdamBS", ReplacementBandit, "adambs", "adambs"),
    "adamcb-paper": RegretMethod("AdamCB (paper)", _paper, "adamcb", "adamcb"),
    "adamcb-paper-known-norm": RegretMethod("AdamCB (paper, L known)", _paper, "adamcb", "adamcb", knows_norm=True),
    "scale-free": RegretMethod("scale-free", _scale_free, "adamcb"),
}
# Names of the past, and what they are called now.
RENAMED = {
    "adambs-corrected": "adambs",
    "adamcb-known-norm": "adamcb-paper-known-norm",
    "adamcb-scale-free": "scale-free",
}
DEFAULT_METHODS = ("uniform", "adambs", "adamcb-paper", "scale-free")


@dataclass(frozen=True)
class RegretRun:
    """A run, and the horizons that it reports."""

    sweep: str
    method: str
    seed: int
    num_samples: int
    batch_size: int
    exploration: float
    horizons: tuple[int, ...]

    def keys(self) -> list[tuple[Any, ...]]:
        """Return what names each of its rows."""
        return [
            (self.sweep, self.method, self.seed, self.num_samples, self.batch_size, steps) for steps in self.horizons
        ]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names a row."""
    return tuple(row[name] for name in ("sweep", "method", "seed", "num_samples", "batch_size", "steps"))


def measure(run: RegretRun, problem: LogisticProblem, minimum: Minimum, settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of a run, one for each horizon."""
    method = METHODS[run.method]
    selection = method.build(
        run.num_samples,
        run.batch_size,
        exploration=run.exploration,
        max_norm=problem.norm_bound(RADIUS) if method.knows_norm else None,
        generator=torch.Generator().manual_seed(1000 + run.seed),
    )
    results = measure_regret(
        problem,
        selection,
        run.horizons,
        lr=settings.lr,
        betas=BETAS,
        beta1_decay=settings.beta1_decay,
        eps=EPS,
        every=settings.every,
        minimum=minimum,
    )
    named = {name: getattr(run, name) for name in COLUMNS[:6]}
    return [{**named, **asdict(result), **bounds_for(run, result, problem, settings)} for result in results]


def bounds_for(run: RegretRun, regret: Regret, problem: LogisticProblem, settings: Settings) -> dict[str, float | None]:
    """Return the bounds on the regret of a run.

    lemma1: Lemma 1 with what was measured in this run: its L_T, its largest coordinate distance for D, its norms.
    bound: the method's theorem, with L unknown (L_T) and the same D.
    bound_known: the theorem as the paper reads it: an L known beforehand, and the distance ‖θ_t − θ*‖ for D.
    bound_printed: that, and the paper's term for gap (B).
    """
    shared: Any = {"lr": settings.lr, "betas": BETAS, "beta1_decay": settings.beta1_decay}
    shared["exploration"] = run.exploration
    d, t = problem.dimension, regret.steps
    seen: Any = {"max_norm": regret.largest_seen, "diameter": regret.coordinate_diameter}
    known: Any = {"max_norm": problem.norm_bound(RADIUS), "diameter": regret.diameter}
    rho = constants(t, d, **seen, **shared)
    middle = math.sqrt(d * regret.sampled_moment) * rho.rho2
    found: dict[str, float | None] = dict.fromkeys(BOUNDS)
    found["lemma1"] = rho.rho1 * d * math.sqrt(t) + middle + rho.rho3
    theorem = METHODS[run.method].theorem
    if theorem is not None:
        sizes: Any = {"num_samples": run.num_samples, "batch_size": run.batch_size, "steps": t, "dimension": d}
        found["bound"] = regret_bound(theorem, **sizes, **seen, **shared).online
        as_read = regret_bound(theorem, **sizes, **known, **shared, eps=EPS)
        found["bound_known"], found["bound_printed"] = as_read.online, as_read.printed
    return found
