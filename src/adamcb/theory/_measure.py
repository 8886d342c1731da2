"""Regret measured along one run of AdamX on chosen batches, beside every quantity that the bounds ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from adamcb import _checks
from adamcb.optim import AdamX, inverse_sqrt
from adamcb.selection import Draw, Selection
from adamcb.theory._logistic import LogisticProblem, Minimum

# Every step is evaluated until so many blocks would have passed; then one step of each block.
_BLOCKS = 20
# For the minimizer of the batches; a sum of T values is off by T·1e-14/(2μ) at most.
_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Regret:
    """What one run says at step T. Sums are over t = 1 … T; θ* minimizes f, θ̂ minimizes Σf_t.

    cumulative = online + gap_batches + gap_minimizers, Eq. (8), holds for every single run; the paper takes
    expectations, which are the means over seeds.

    Attributes:
        steps: T.
        cumulative: Σf(θ_t) − T·f(θ*), Eq. (5).
        online: Σf_t(θ_t) − Σf_t(θ̂).
        gap_batches: (A), Σf(θ_t) − Σf_t(θ_t).
        gap_minimizers: (B), Σf_t(θ̂) − T·f(θ*).
        overfit: Σf_t(θ*) − Σf_t(θ̂), at or above 0. Its expectation is that of −(B), with much less noise.
        max_norm: The largest gradient norm of all n samples at the evaluated steps.
        largest_seen: L_T, the largest norm that was sampled.
        diameter: The largest ‖θ_t − θ̂‖, or a little above it.
        coordinate_diameter: The same for the largest coordinate.
        gradient_sums: Σ_u ‖g_1:T,u‖, what the middle term of Lemma 1 is before its last steps.
        sampled_moment: (K/n²)ΣΣ_{j∈J}‖g_j‖²/p_j², under the root in Lemma 1.
        moment: Its expectation, (K/n²)ΣΣᵢ‖gᵢ‖²/pᵢ.
        uniform_moment: The same with pᵢ = K/n: Σ(1/n)Σᵢ‖gᵢ‖².
        best_fixed_moment: The same with the best probabilities that stay fixed, ((1/n)Σᵢ√(Σ_t‖gᵢ‖²))².
        best_moment: The same with the best at every step, Σ((1/n)Σᵢ‖gᵢ‖)².
        loss: f(θ) at the last evaluated step, less f(θ*).
    """

    steps: int
    cumulative: float
    online: float
    gap_batches: float
    gap_minimizers: float
    overfit: float
    max_norm: float
    largest_seen: float
    diameter: float
    coordinate_diameter: float
    gradient_sums: float
    sampled_moment: float
    moment: float
    uniform_moment: float
    best_fixed_moment: float
    best_moment: float
    loss: float


REGRET_FIELDS = tuple(entry.name for entry in fields(Regret))


def measure_regret(
    problem: LogisticProblem,
    selection: Selection,
    horizons: Iterable[int],
    *,
    lr: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    beta1_decay: float = 0.99,
    eps: float = 1e-8,
    every: int = 1,
    minimum: Minimum | None = None,
) -> list[Regret]:
    """Run AdamX with the learning rate α/√t from θ = 0 on the batches of `selection`; return regret at every horizon.

    Args:
        problem: f.
        selection: Chooses the batches, and learns from their norms. With Lemma 2's exploration it knows the horizon:
            then one run is good for one horizon.
        horizons: The T to report, in rising order.
        lr: α.
        betas: β₁ and β₂.
        beta1_decay: λ.
        eps: ε.
        every: Evaluate f, which takes all n samples, at one step in so many (at all of the first steps). With 1 the
            decomposition is exact; else cumulative regret and gap (A) are estimates.
        minimum: What `problem.minimize()` returns, if it is known.

    Example:
        >>> from adamcb.selection import CombinatorialBandit
        >>> points = torch.linspace(-1, 1, 40)[:, None]
        >>> problem = LogisticProblem(points, (points[:, 0] > 0.2).long(), penalty=0.01)
        >>> bandit = CombinatorialBandit(40, 4, generator=torch.Generator().manual_seed(0))
        >>> [regret] = measure_regret(problem, bandit, [50])
        >>> gaps = regret.gap_batches + regret.gap_minimizers
        >>> abs(regret.cumulative - regret.online - gaps) < 1e-9
        True
    """
    _checks.instance("problem", problem, LogisticProblem, "a LogisticProblem")
    _checks.instance("selection", selection, Selection, "a Selection")
    counts = _checks.sequence("horizons", horizons, "be rising step counts")
    stops = [_checks.integer("horizons", horizon, low=1, high=10**9) for horizon in counts]
    lr, eps = _checks.magnitude("lr", lr), _checks.real("eps", eps, low=0.0, low_open=True)
    if not stops or sorted(set(stops)) != stops:
        raise ValueError(f"`horizons` must be rising step counts, at least one, got horizons={stops}.")
    if problem.num_samples != selection.num_samples:
        raise ValueError(
            f"`selection` must choose among the {problem.num_samples} samples of the problem, "
            f"got one for {selection.num_samples}."
        )
    evaluated = _evaluated_steps(stops[-1], _checks.count("every", every))
    minimum = problem.minimize() if minimum is None else _checks.instance("minimum", minimum, Minimum, "a Minimum")
    params = problem.start().requires_grad_()
    optimizer = AdamX([params], lr=lr, betas=betas, eps=eps, beta1_decay=beta1_decay, bias_correction=False)
    schedule = inverse_sqrt(optimizer)
    sums = _Sums(problem, minimum)
    results = []
    for step in range(1, stops[-1] + 1):
        if evaluated[step - 1]:
            sums.see_everything(params.detach(), selection, float(evaluated[step - 1]))
        draw = selection.draw()
        norms = sums.take(params, draw)
        selection.update(draw, norms)
        optimizer.step()
        schedule.step()
        if step == stops[len(results)]:
            results.append(sums.regret(step))
    return results


def _evaluated_steps(steps: int, every: int) -> np.ndarray:
    """Return how many steps each step stands for: 1 early on, later `every` for the middle of a block and 0 else."""
    counts = np.ones(steps)
    for first in range(_BLOCKS * every, steps, every):
        counts[first : first + every] = 0.0
        block = min(every, steps - first)
        counts[first + block // 2] = block
    return counts


@dataclass
class _Sums:
    """Sums over the steps so far."""

    problem: LogisticProblem
    minimum: Minimum
    stands_for: float = 0.0  # steps that the evaluated ones stand for
    full_losses: float = 0.0
    batch_losses: float = 0.0
    max_norm: float = 0.0
    largest_seen: float = 0.0
    diameter: float = 0.0
    sampled_moment: float = 0.0
    moment: float = 0.0
    uniform_moment: float = 0.0
    best_moment: float = 0.0
    loss: float = 0.0
    coordinate_distances: Tensor = field(init=False)
    square_gradients: Tensor = field(init=False)
    square_norms: Tensor = field(init=False)
    sample_weights: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.coordinate_distances = self.problem.start()
        self.square_gradients = self.problem.start()
        self.square_norms = torch.zeros(self.problem.num_samples, dtype=torch.float64)
        self.sample_weights = torch.zeros(self.problem.num_samples, dtype=torch.float64)

    def see_everything(self, params: Tensor, selection: Selection, count: float) -> None:
        """Evaluate all samples, before the draw, for a step that stands for `count` steps."""
        losses, norms = self.problem.evaluate(params)
        n, k = self.problem.num_samples, selection.batch_size
        squares = norms.square()
        probs = torch.from_numpy(selection.inclusion_probs())
        self.loss = float(losses.mean()) - self.minimum.value
        self.stands_for += count
        self.full_losses += count * self.loss
        self.max_norm = max(self.max_norm, float(norms.max()))
        self.square_norms.add_(squares, alpha=count)
        self.moment += count * k / n**2 * float((squares / probs).sum())
        self.uniform_moment += count * float(squares.mean())
        self.best_moment += count * float(norms.mean()) ** 2

    def take(self, params: Tensor, draw: Draw) -> np.ndarray:
        """Set the gradient of f_t on `params`, and return the norms of the batch."""
        indices, weights = torch.from_numpy(draw.indices.copy()), torch.from_numpy(draw.loss_weights.copy())
        losses, norms, gradient = self.problem.batch(params.detach(), indices, weights)
        params.grad = gradient
        away = (params.detach() - self.minimum.params).abs_()
        torch.maximum(self.coordinate_distances, away, out=self.coordinate_distances)
        self.diameter = max(self.diameter, float(away.norm()))
        self.batch_losses += float(weights @ losses)
        self.sample_weights.index_add_(0, indices, weights)
        self.square_gradients.addcmul_(gradient, gradient)
        # weights = 1/(n p)
        self.sampled_moment += len(draw) * float((weights * norms).square().sum())
        values = norms.numpy()
        self.largest_seen = max(self.largest_seen, float(values.max()))
        return values

    def regret(self, steps: int) -> Regret:
        """Return what the sums say."""
        # f_t summed over t is a weighted sum of the samples' losses.
        batches = self.problem.minimize(self.sample_weights, start=self.minimum.params, tolerance=_TOLERANCE)
        at_minimum, _ = self.problem.evaluate(self.minimum.params)
        apart = batches.params - self.minimum.params
        least = steps * self.minimum.value
        share = steps / self.stands_for
        cumulative = share * self.full_losses
        return Regret(
            steps=steps,
            cumulative=cumulative,
            online=self.batch_losses - batches.value,
            gap_batches=cumulative + least - self.batch_losses,
            gap_minimizers=batches.value - least,
            overfit=float(self.sample_weights @ at_minimum) - batches.value,
            max_norm=self.max_norm,
            largest_seen=self.largest_seen,
            diameter=self.diameter + float(apart.norm()),
            coordinate_diameter=float((self.coordinate_distances + apart.abs()).max()),
            gradient_sums=float(self.square_gradients.sqrt().sum()),
            sampled_moment=self.sampled_moment,
            moment=share * self.moment,
            uniform_moment=share * self.uniform_moment,
            best_fixed_moment=share * float(self.square_norms.sqrt().mean()) ** 2,
            best_moment=share * self.best_moment,
            loss=self.loss,
        )
