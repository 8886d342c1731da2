"""A physics-informed network for Burgers' equation: collocation points are chosen by the size of their residual.

    python examples/pinn.py [--epochs N] [--points N]

The equation is u_t + u u_x = (0.01/π) u_xx, with u(x, 0) = −sin πx and u(±1, t) = 0. A sample is a point, its loss is
the squared residual there, and its score is the size of the residual.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import adamcb


def solution(model: nn.Module, points: Tensor) -> Tensor:
    """Initial and boundary values are built in, so that the residual is all that there is to minimize."""
    x, t = points.unbind(1)
    return -torch.sin(math.pi * x) + t * (1.0 - x**2) * model(points).squeeze(1)


def residual(model: nn.Module, points: Tensor) -> Tensor:
    points = points.requires_grad_()
    u = solution(model, points)
    u_x, u_t = torch.autograd.grad(u.sum(), points, create_graph=True)[0].unbind(1)
    u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, 0]
    return u_t + u * u_x - (0.01 / math.pi) * u_xx


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--points", type=int, default=20_000)
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    points = torch.rand(options.points, 2, generator=generator) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = adamcb.AdaptiveLoader(model, TensorDataset(points), 256, scores=torch.sqrt)  # √(residual²)
    for epoch in range(options.epochs):
        for (batch,) in loader:
            optimizer.zero_grad()
            loader.weigh(residual(model, batch).square()).backward()
            optimizer.step()
        mean = residual(model, points.clone()).square().mean().item()
        print(f"epoch {epoch + 1}: mean squared residual {mean:.4f}")
    return mean


if __name__ == "__main__":
    main()
