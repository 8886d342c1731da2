"""Ways of getting per-sample gradient norms: each returns a step that does forward, backward and the norms."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms

Step = Callable[[], object]


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return one loss for each sample: its cross-entropy, averaged over its tokens if it has several."""
    if logits.dim() == 2:
        return F.cross_entropy(logits, targets, reduction="none")
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    def step() -> None:
        model.zero_grad()
        losses(model(inputs), targets).sum().backward()

    return step


def engine(mode: str) -> Callable[[nn.Module, Tensor, Tensor], Step]:
    def way(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        norms = PerSampleNorms(model, mode=mode)

        def step() -> Tensor:
            model.zero_grad()
            losses(model(inputs), targets).sum().backward()
            return norms.take()

        return step

    return way


def opacus(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", use_ghost_clipping=True)

    def step() -> Tensor:
        wrapped.zero_grad()
        losses(wrapped(inputs), targets).sum().backward()
        return wrapped.get_norm_sample()

    return step


def backpack(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad

    extended, loss = extend(model), extend(nn.CrossEntropyLoss(reduction="sum"))

    def step() -> Tensor:
        extended.zero_grad()
        with backpack(BatchL2Grad()):
            loss(extended(inputs), targets).backward()
        return torch.stack([p.batch_l2 for p in extended.parameters()]).sum(0).sqrt()  # type: ignore[attr-defined]

    return step


def torch_func(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return losses(torch.func.functional_call(model, values, (x.unsqueeze(0),)), y.unsqueeze(0)).sum()

    size = max(1, min(len(inputs), 2**28 // sum(p.numel() for p in model.parameters())))
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> Tensor:
        squares, totals = [], {}
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            grads = gradients(parameters, x, y)
            squares.append(sum(g.flatten(1).square().sum(1) for g in grads.values()))
            totals = {name: g.sum(0) + totals.get(name, 0.0) for name, g in grads.items()}
        return torch.cat(squares).sqrt()

    return step


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "plain": plain,
    "exact": engine("exact"),
    "last-layer": engine("last-layer"),
}
OURS = tuple(WAYS)
PEERS = {"opacus": opacus, "backpack": backpack}
WAYS |= {name: way for name, way in PEERS.items() if importlib.util.find_spec(name) is not None}
WAYS["torch.func"] = torch_func
