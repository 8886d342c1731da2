"""The paper's regret bounds with every constant written out.

Letters: n `num_samples`, K `batch_size`, T `steps`, d `dimension`, L `max_norm`, D `diameter`, γ `exploration`,
α `lr`, β₁ and β₂ `betas`, η = β₁/√β₂, λ `beta1_decay`, ε `eps`. Gradient estimates are unbiased, (1/n)·Σ_{j∈J} g_j/p_j
with probabilities that sum to K, so that Lemma 1 reads (K/n²)·Σ‖g‖²/p² where the paper, whose estimate is K times too
small, has 1/(n²K). For AdamBS, where the paper's probabilities sum to 1, the two agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adamcb import _checks

METHODS = ("uniform", "adambs", "adamcb")
_LEAST = 1e-100  # of what is divided by


def exploration(num_samples: int, batch_size: int, steps: int, *, method: str = "adamcb") -> float:
    """Return the γ that Lemma 2 sets for a horizon of T steps.

    AdamCB: min{1, √(n ln(n/K) / ((e − 1)TK))}; AdamBS: min{1, √(n ln n / ((e − 1)T))}. At 1 nothing is learned: the
    draw is uniform. For AdamBS that is so up to T = n ln n/(e − 1), whatever the batch size.

    Args:
        num_samples: n.
        batch_size: K, at most n.
        steps: T.
        method: "adamcb" or "adambs".

    Example:
        >>> [round(exploration(60_000, 128, steps), 3) for steps in (1_000, 4_690, 46_900)]
        [1.0, 0.598, 0.189]
        >>> exploration(60_000, 128, 46_900, method="adambs")
        1.0
    """
    n, k, t = _sizes(num_samples, batch_size, steps)
    _checks.one_of("method", method, ("adamcb", "adambs"))
    square = n * math.log(n / k) / k if method == "adamcb" else n * math.log(n)
    return min(1.0, math.sqrt(square / ((math.e - 1.0) * t)))


def _sizes(num_samples: int, batch_size: int, steps: int) -> tuple[int, int, int]:
    """Return n, K and T, or raise."""
    n = _checks.num_samples(num_samples)
    return n, _checks.integer("batch_size", batch_size, low=1, high=n), _checks.count("steps", steps)


_lemma2 = exploration  # for functions with an argument of that name


@dataclass(frozen=True)
class Constants:
    """ρ₁, ρ₂ and ρ₃ of Lemma 1."""

    rho1: float
    rho2: float
    rho3: float


def constants(
    steps: int,
    dimension: int,
    *,
    max_norm: float,
    diameter: float,
    exploration: float,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    beta1_decay: float = 0.99,
) -> Constants:
    """Return the constants of Lemma 1.

    ρ₁ = D²L / (2αγ(1 − β₁)²),  ρ₂ = α√(1 + ln T) / ((1 − β₁)²√(1 − β₂)(1 − η)),  ρ₃ = dβ₁D²L / (2αγ(1 − β₁)²(1 − λ)²)

    Args:
        steps: T.
        dimension: d.
        max_norm: L. For L unknown, L_T: the largest norm sampled in the run.
        diameter: D, above every |θ_t,u − θ*_u|. The paper takes the distance ‖θ_t − θ*‖; its proof needs no more than
            the largest coordinate.
        exploration: γ in (0, 1].
        lr: α; step t has α/√t.
        betas: β₁ and β₂, with β₁ < √β₂: at equality, which condition (c) allows, ρ₂ is infinite.
        beta1_decay: λ in (0, 1).

    Raises:
        ValueError: If a value is out of its range.

    Example:
        >>> rho = constants(100, 10, max_norm=1.0, diameter=1.0, exploration=1.0, lr=0.1, beta1_decay=0.9)
        >>> round(rho.rho1), round(rho.rho2), round(rho.rho3)
        (500, 7521, 450000)
    """
    t, d = _checks.count("steps", steps), _checks.count("dimension", dimension)
    beta1, beta2 = _checks.betas(betas)
    _checks.real("betas[1]", beta2, low=beta1**2, high=1.0, low_open=True, high_open=True)
    if beta2 == 0.0 or not beta1 / math.sqrt(beta2) < 1.0:
        raise ValueError(f"`betas` must be two numbers with β₁ < √β₂, got betas={betas}.")
    gamma = _checks.magnitude("exploration", exploration, low=_LEAST, high=1.0)
    alpha = _checks.magnitude("lr", lr, low=_LEAST)
    decay = _checks.real("beta1_decay", beta1_decay, low=0.0, high=1.0, low_open=True, high_open=True)
    size = _checks.magnitude("diameter", diameter) ** 2 * _checks.magnitude("max_norm", max_norm)
    rho1 = size / (2.0 * alpha * gamma * (1.0 - beta1) ** 2)
    eta = beta1 / math.sqrt(beta2)
    rho2 = alpha * math.sqrt(1.0 + math.log(t)) / ((1.0 - beta1) ** 2 * math.sqrt(1.0 - beta2) * (1.0 - eta))
    return Constants(rho1, rho2, d * beta1 * rho1 / (1.0 - decay) ** 2)


@dataclass(frozen=True)
class RegretBound:
    """A bound on regret, term by term.

    Attributes:
        distance: ρ₁d√T, what moving from the start to the minimizer may cost.
        norms: √d·ρ₂·√(ΣM_t): what is left of the second moment with the best probabilities.
        sampling: √d·ρ₂ times the root of what the probabilities lack of the best: the variance of the norms for
            uniform sampling, the bandit's regret for the others.
        momentum: ρ₃.
        minimizers: What the paper adds for gap (B), 2αL²√T/(εγ²(1 − β₁)). It is not needed: the gap is at most 0.
        floor: √d·ρ₂·√(TL²/γ): what pᵢ ≥ Kγ/n alone gives in the place of `norms` + `sampling`, with no bandit at all.
            `sampling` is never below it: what Lemma 2 adds to the floor is nothing.
    """

    distance: float
    norms: float
    sampling: float
    momentum: float
    minimizers: float
    floor: float

    @property
    def online(self) -> float:
        """Return the bound on online regret. As gap (A) is 0 and (B) at most 0, it bounds cumulative regret too."""
        return self.distance + self.norms + self.sampling + self.momentum

    @property
    def printed(self) -> float:
        """Return the paper's bound on cumulative regret, with its term for gap (B)."""
        return self.online + self.minimizers


def bandit_regret(method: str, num_samples: int, batch_size: int, steps: int, exploration: float) -> float:
    """Return the bound on the bandit's regret in units of its loss, which is in [0, 1] for each of K samples.

    AdamCB: (e − 1)γTK + (n/γ) ln(n/K), AdamBS: (e − 1)γTK + (nK/γ) ln n, and TK if that is less. At Lemma 2's γ below 1
    the first is 2√(e − 1)·√(KnT ln(n/K)), which the paper rounds up to 2.63·√(KnT ln(n/K)).
    """
    n, k, t = _sizes(num_samples, batch_size, steps)
    _checks.one_of("method", method, ("adamcb", "adambs"))
    exploration = _checks.magnitude("exploration", exploration, low=_LEAST, high=1.0)
    price = n * math.log(n / k) if method == "adamcb" else n * k * math.log(n)
    return min((math.e - 1.0) * exploration * t * k + price / exploration, float(t * k))


def regret_bound(
    method: str,
    *,
    num_samples: int,
    batch_size: int,
    steps: int,
    dimension: int,
    max_norm: float,
    diameter: float,
    lr: float,
    exploration: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    beta1_decay: float = 0.99,
    eps: float = 1e-8,
    mean_norm: float | None = None,
    norm_std: float | None = None,
) -> RegretBound:
    """Return the bound that the paper's proofs give, with all constants: uniform, AdamBS or AdamCB (Theorem 1).

    The hidden constant of Lemma 2, L²/p_min², is here; so is σ², which the paper's theorem for uniform sampling divides
    by n. Whether each step of the proofs holds is another matter: see docs/theory.md.

    Args:
        method: "uniform", "adambs" or "adamcb".
        num_samples: n.
        batch_size: K, at most n.
        steps: T.
        dimension: d.
        max_norm: L; for L unknown the largest norm sampled, L_T.
        diameter: D; see `constants`.
        lr: α; step t has α/√t.
        exploration: γ; None: Lemma 2's, which knows T. Uniform sampling has 1.
        betas: β₁ and β₂, with β₁ < √β₂.
        beta1_decay: λ in (0, 1).
        eps: ε, for the paper's term for gap (B).
        mean_norm: A bound on the root mean square over steps of the mean norm (1/n)Σᵢ‖gᵢ‖; None: L, as in the theorems.
        norm_std: σ, for "uniform": a bound on the standard deviation of the n norms; None: L/2, which always holds.

    Example:
        >>> setting = dict(num_samples=1000, batch_size=32, steps=10_000, dimension=650, max_norm=1.0, diameter=1.0)
        >>> [f"{regret_bound(method, lr=0.1, **setting).online:.1e}" for method in METHODS]
        ['3.0e+09', '4.7e+09', '3.8e+10']
    """
    _checks.one_of("method", method, METHODS)
    _sizes(num_samples, batch_size, steps)
    _checks.magnitude("eps", eps, low=_LEAST)
    if method == "uniform":
        gamma = 1.0
    else:
        gamma = _lemma2(num_samples, batch_size, steps, method=method) if exploration is None else exploration
    rho = constants(
        steps,
        dimension,
        max_norm=max_norm,
        diameter=diameter,
        exploration=gamma,
        lr=lr,
        betas=betas,
        beta1_decay=beta1_decay,
    )
    mean = max_norm if mean_norm is None else _checks.magnitude("mean_norm", mean_norm)
    deviation = max_norm / 2.0 if norm_std is None else _checks.magnitude("norm_std", norm_std)
    if method == "uniform":
        lacking = deviation**2 * steps
    else:
        # (K/n²)·(L/p_min)²·regret with p_min = Kγ/n
        lacking = max_norm**2 / (batch_size * gamma**2)
        lacking *= bandit_regret(method, num_samples, batch_size, steps, gamma)
    return RegretBound(
        distance=rho.rho1 * dimension * math.sqrt(steps),
        norms=math.sqrt(dimension * steps) * rho.rho2 * mean,
        sampling=math.sqrt(dimension * lacking) * rho.rho2,
        momentum=rho.rho3,
        minimizers=2.0 * lr * max_norm**2 * math.sqrt(steps) / (eps * gamma**2 * (1.0 - betas[0])),
        floor=math.sqrt(dimension * steps / gamma) * rho.rho2 * max_norm,
    )


def regret_order(method: str, *, num_samples: int, batch_size: int, steps: int, dimension: int) -> tuple[float, float]:
    """Return the two terms of Table 1 as printed, without constants: they say how a bound grows, not how large it is.

    The first is d√T for all. The second is √d·√(T/n) for uniform sampling, √d·n^(−3/4)·(T ln n)^(1/4) for AdamBS and
    √d·n^(−3/4)·((T/K) ln(n/K))^(1/4) for AdamCB.

    Example:
        >>> regret_order("adamcb", num_samples=1000, batch_size=10, steps=100, dimension=4)[0]
        40.0
    """
    _checks.one_of("method", method, METHODS)
    n, k, t = _sizes(num_samples, batch_size, steps)
    d = _checks.count("dimension", dimension)
    if method == "uniform":
        second = math.sqrt(t / n)
    else:
        inside = t * math.log(n) if method == "adambs" else t / k * math.log(n / k)
        second = n**-0.75 * inside**0.25
    return d * math.sqrt(t), math.sqrt(d) * second
