"""Regret by its definitions: autograd for every gradient, all iterates kept, scipy for every minimum."""

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy

from tests.reference.adamx import SlowAdamX


def sample_loss(problem, params, i):
    """ℓᵢ(θ), as a tensor that autograd can follow."""
    logits = params @ problem.inputs[i]
    return cross_entropy(logits[None], problem.labels[i : i + 1]) + 0.5 * problem.penalty * (params**2).sum()


def sample_gradient(problem, params, i):
    params = params.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sample_loss(problem, params, i), params)
    return gradient


def weighted_loss(problem, params, weights):
    return sum(float(weights[i]) * float(sample_loss(problem, params, i)) for i in range(problem.num_samples))


def weighted_minimum(problem, weights):
    """The minimizer of Σ weights[i]·ℓᵢ, by BFGS with a dense inverse Hessian."""
    shape = problem.start().shape

    def value_and_gradient(flat):
        params = torch.tensor(flat).view(shape).requires_grad_()
        losses = torch.stack([sample_loss(problem, params, i) for i in range(problem.num_samples)])
        total = torch.as_tensor(weights) @ losses
        (gradient,) = torch.autograd.grad(total, params)
        return total.item(), gradient.flatten().numpy()

    found = minimize(value_and_gradient, np.zeros(shape.numel()), jac=True, method="BFGS", options={"gtol": 1e-9})
    return torch.tensor(found.x).view(shape)


def slow_regret(problem, selection, steps, *, lr, betas, beta1_decay, eps):
    """Every field of `Regret`, as a dict, for one horizon."""
    n, k, shape = problem.num_samples, selection.batch_size, problem.start().shape
    everyone = range(n)
    adamx = SlowAdamX([0.0] * shape.numel(), lr=lr, betas=betas, eps=eps, beta1_decay=beta1_decay)
    full, batch, moments, sampled, iterates, gradients, all_norms, seen = [], [], [], [], [], [], [], []
    weights = np.zeros(n)
    for t in range(1, steps + 1):
        params = torch.tensor(adamx.theta, dtype=torch.float64).view(shape)
        norms = np.array([float(sample_gradient(problem, params, i).norm()) for i in everyone])
        probs = selection.inclusion_probs()
        draw = selection.draw()
        own = 1.0 / (n * draw.probs)
        gradient = torch.stack(
            [w * sample_gradient(problem, params, i) for w, i in zip(own, draw.indices, strict=True)]
        ).sum(0)
        full.append(np.mean([float(sample_loss(problem, params, i)) for i in everyone]))
        batch.append(sum(w * float(sample_loss(problem, params, i)) for w, i in zip(own, draw.indices, strict=True)))
        moments.append(k / n**2 * (norms**2 / probs).sum())
        sampled.append(k / n**2 * (norms[draw.indices] ** 2 / draw.probs**2).sum())
        np.add.at(weights, draw.indices, own)
        iterates.append(params)
        gradients.append(gradient)
        all_norms.append(norms)
        seen.append(norms[draw.indices].max())
        selection.update(draw, norms[draw.indices])
        adamx.lr = lr / math.sqrt(t)
        adamx.step(gradient.flatten().tolist())
    uniform = np.full(n, 1.0 / n)
    star, hat = weighted_minimum(problem, uniform), weighted_minimum(problem, weights)
    least, batch_least = steps * weighted_loss(problem, star, uniform), weighted_loss(problem, hat, weights)
    norms = np.array(all_norms)
    return {
        "steps": steps,
        "cumulative": sum(full) - least,
        "online": sum(batch) - batch_least,
        "gap_batches": sum(full) - sum(batch),
        "gap_minimizers": batch_least - least,
        "overfit": weighted_loss(problem, star, weights) - batch_least,
        "max_norm": norms.max(),
        "largest_seen": max(seen),
        "least_diameter": max(float((params - hat).norm()) for params in iterates),
        "least_coordinate_diameter": max(float((params - hat).abs().max()) for params in iterates),
        "gradient_sums": float(torch.stack(gradients).square().sum(0).sqrt().sum()),
        "sampled_moment": sum(sampled),
        "moment": sum(moments),
        "uniform_moment": (norms**2).mean(axis=1).sum(),
        "best_fixed_moment": np.sqrt((norms**2).sum(axis=0)).mean() ** 2,
        "best_moment": (norms.mean(axis=1) ** 2).sum(),
        "loss": full[-1] - least / steps,
    }
