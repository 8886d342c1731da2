"""Physics-informed networks: Burgers' and Allen–Cahn's equation for (x, t) in [−1, 1] × [0, 1].

A sample is a collocation point, and its loss is the square of the equation's residual there. Initial and boundary
values are built into the network, so the residual is all that there is to minimize. Reference solutions, for testing
alone, are pinn/burgers.npz and pinn/allen_cahn.mat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.io
import torch
from scipy.interpolate import RegularGridInterpolator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.data import TensorDataset

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DataFileError, find_file
from adamcb.lab.tasks.task import Task

NUM_POINTS = 50_000
BATCH_SIZE, STEPS = 256, 6_000


class Jet(NamedTuple):
    """A function of (x, t) at k points, with the derivatives that the equations need, each float[k]."""

    u: Tensor
    x: Tensor
    t: Tensor
    xx: Tensor


@dataclass(frozen=True)
class Equation:
    """An equation with its values at t = 0 and at x = ±1.

    Attributes:
        name: What the task is called.
        residual: From the solution's jet to float[k].
        start: u(x, 0), u′(x, 0) and u″(x, 0) of float[k].
        file: The reference solution.
    """

    name: str
    residual: Callable[[Jet], Tensor]
    start: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    file: str


def _sine(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sine, cosine = (math.pi * x).sin(), (math.pi * x).cos()
    return -sine, -math.pi * cosine, math.pi**2 * sine


def _squared_cosine(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sine, cosine, pi = (math.pi * x).sin(), (math.pi * x).cos(), math.pi
    second = (2.0 - pi**2 * x**2) * cosine - 4.0 * pi * x * sine
    return x**2 * cosine, 2.0 * x * cosine - pi * x**2 * sine, second


BURGERS = Equation("burgers", lambda u: u.t + u.u * u.x - (0.01 / math.pi) * u.xx, start=_sine, file="burgers.npz")
ALLEN_CAHN = Equation(
    "allen-cahn", lambda u: u.t - 0.001 * u.xx - 5.0 * (u.u - u.u**3), start=_squared_cosine, file="allen_cahn.mat"
)


class _Tanh(torch.autograd.Function):
    """Takes a jet through bias and tanh: z, z_x, z_t and z_xx, as float[4, k, width].

    With v = tanh(z + bias) and s = 1 − v² these become v, s z_x, s z_t and s (z_xx − 2 v z_x²). The gradient is written
    out, since most of a step's time would go into autograd's.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor) -> Tensor:
        """Return the jet of v."""
        jet = torch.empty_like(z)
        value = torch.tanh(z[0] + bias, out=jet[0])
        slope = 1.0 - value.square()
        torch.mul(slope, z[1:], out=jet[1:])
        jet[3].addcmul_(value * z[1], jet[1], value=-2.0)
        ctx.save_for_backward(z, jet, slope)
        return jet

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of z and of the bias."""
        z, jet, slope = ctx.saved_tensors
        value, back = jet[0], slope * grad
        bend = back[3] * z[1]
        back[0].addcmul_(value, (back[1:] * z[1:]).sum(0), value=-2.0)
        back[0].addcmul_(bend * z[1], 4.0 - 6.0 * slope)
        back[1].addcmul_(bend, value, value=-4.0)
        return back, back[0].sum(0)


class Solution(nn.Module):
    """u(x, t) = start(x) + t (1 − x²) N(x, t), with N an MLP of tanh layers. Calling it returns u's `Jet`.

    Derivatives are carried forward through the layers beside the values, in the same matrix products.
    """

    def __init__(self, equation: Equation, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.equation = equation
        sizes = [2, *[width] * depth, 1]
        self.layers = nn.ModuleList(nn.Linear(size, after) for size, after in zip(sizes, sizes[1:], strict=False))
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, points: Tensor) -> Jet:
        """Return the jet of u at points float[k, 2]."""
        x, t = points.unbind(1)
        n, (start, start_x, start_xx) = self._network(points), self.equation.start(x)
        bump = 1.0 - x**2
        return Jet(
            u=start + t * bump * n.u,
            x=start_x + t * (bump * n.x - 2.0 * x * n.u),
            t=bump * (n.u + t * n.t),
            xx=start_xx + t * (bump * n.xx - 4.0 * x * n.x - 2.0 * n.u),
        )

    def value(self, points: Tensor) -> Tensor:
        """Return u alone."""
        x, t = points.unbind(1)
        h = points
        for layer in self.layers[:-1]:
            h = layer(h).tanh()
        return self.equation.start(x)[0] + t * (1.0 - x**2) * self.layers[-1](h).squeeze(1)

    def _network(self, points: Tensor) -> Jet:
        along = torch.eye(2, dtype=points.dtype, device=points.device).unsqueeze(1).expand(2, *points.shape)
        h = torch.cat([points.unsqueeze(0), along, torch.zeros_like(points).unsqueeze(0)])
        *hidden, last = cast("list[nn.Linear]", list(self.layers))
        for layer in hidden:
            h = cast("Tensor", _Tanh.apply(h @ layer.weight.T, layer.bias))
        n, *slopes = (h @ last.weight.T).squeeze(2).unbind()
        return Jet(n + last.bias, *slopes)


def squared_residual(model: nn.Module, batch: Any) -> Tensor:
    """Return the square of the residual at every point."""
    assert isinstance(model, Solution)
    return model.equation.residual(model(batch[0])).square()


def size_of_residual(losses: Tensor) -> Tensor:
    """Return |residual| of squared residuals: what points are scored by."""
    return losses.sqrt()


def values(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the solution and the reference at every point."""
    assert isinstance(model, Solution)
    return model.value(batch[0]), batch[1]


def pinn(equation: Equation, data_dir: str | None = None, num_points: int = NUM_POINTS) -> Task:
    """Return an equation as a task, about 6,000 steps with batches of 256 points."""
    grid, reference = read_reference(find_file("pinn", equation.file, data_dir))
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(num_points, 2, generator=generator) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    return Task(
        equation.name,
        partial(Solution, equation),
        TensorDataset(points, interpolated(grid, reference, points)),
        TensorDataset(grid, reference),
        loss=squared_residual,
        predict=values,
        metrics={"relative L2 error": metrics.relative_l2_error},
        batch_size=BATCH_SIZE,
        epochs=max(1, round(STEPS / (num_points // BATCH_SIZE))) if num_points >= BATCH_SIZE else 1,
        scores=size_of_residual,
    )


def interpolated(grid: Tensor, reference: Tensor, points: Tensor) -> Tensor:
    """Return the reference solution at points between those of its grid: for the metric, never for the loss."""
    x, t = (np.unique(column) for column in grid.numpy().T)
    outside: Any = None  # the last t of a grid may be 0.99
    surface = RegularGridInterpolator(
        (t, x), reference.reshape(len(t), len(x)).numpy(), bounds_error=False, fill_value=outside
    )
    return torch.from_numpy(surface(points.flip(1).numpy()).astype(np.float32))


def burgers(data_dir: str | None = None) -> Task:
    """Return Burgers' equation u_t + u u_x = (0.01/π) u_xx, with u(x, 0) = −sin πx and u(±1, t) = 0."""
    return pinn(BURGERS, data_dir)


def allen_cahn(data_dir: str | None = None) -> Task:
    """Return Allen–Cahn's equation u_t = 0.001 u_xx + 5 (u − u³), with u(x, 0) = x² cos πx and u(±1, t) = −1."""
    return pinn(ALLEN_CAHN, data_dir)


def read_reference(path: Path) -> tuple[Tensor, Tensor]:
    """Return points float32[m, 2] of a grid, and the solution there, float32[m]."""
    try:
        arrays = scipy.io.loadmat(path) if path.suffix == ".mat" else dict(np.load(path, allow_pickle=False))
        x, t = (np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in ("x", "t"))
        u = np.asarray(arrays["usol"].T if "usol" in arrays else arrays["u"], dtype=np.float64)
    except Exception as error:  # scipy raises what it likes
        raise DataFileError(f"{path} must hold x, t and the solution: {error}.") from error
    if u.shape != (len(t), len(x)) or not np.isfinite(u).all():
        raise DataFileError(f"{path} must hold a solution for every t and x, got shape {u.shape}.")
    mesh = np.stack(np.meshgrid(x, t), axis=-1).reshape(-1, 2)
    return torch.from_numpy(mesh.astype(np.float32)), torch.from_numpy(u.reshape(-1).astype(np.float32))
