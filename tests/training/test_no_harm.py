"""Do no harm: on a task built so that choosing cannot help, the default trains as reshuffled epochs do, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import AdamCB, CombinatorialBandit, PerSampleNorms, UniformSelection

N, K, EPOCHS = 120, 8, 12


def parameters_after(losses_of, kind, **options) -> tuple[torch.Tensor, float]:
    """Train on vectors of length 1; return the parameters and the meter's second moment."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(N, 5, generator=generator))
    y = (x[:, 0] > 0.0) * 2.0 - 1.0
    model = nn.Linear(5, 1, bias=False)
    nn.init.zeros_(model.weight)
    selection = kind(N, K, generator=torch.Generator().manual_seed(1), **options)
    with AdamCB(model, TensorDataset(x, y), K, lr=0.05, selection=selection, scores="exact") as trainer:
        for _ in range(EPOCHS):
            for inputs, signs in trainer:
                trainer.step(losses_of(model(inputs).squeeze(1) * signs))
        return model.weight.detach().clone(), trainer.meter.second_moment


def linear(margins: torch.Tensor) -> torch.Tensor:
    """A loss whose gradients all have norm 1."""
    return -margins


def test_where_all_gradients_are_of_one_length_the_default_is_reshuffled_epochs():
    ours, second_moment = parameters_after(linear, CombinatorialBandit)
    plain, _ = parameters_after(linear, UniformSelection)
    assert torch.equal(ours, plain)
    assert second_moment == pytest.approx(1.0, abs=1e-12)


def hinge(margins: torch.Tensor) -> torch.Tensor:
    """A loss that most samples come to satisfy: their gradients vanish."""
    return (0.2 - margins).clamp(min=0.0)


def test_where_they_differ_it_is_not():
    ours, second_moment = parameters_after(hinge, CombinatorialBandit)
    plain, _ = parameters_after(hinge, UniformSelection)
    assert not torch.equal(ours, plain)
    assert second_moment < 0.9


class Renormed(nn.Module):
    """Has an operation that no rule is written for."""

    def forward(self, x):
        return torch.renorm(x, 2, 0, 1.0)


def test_an_operation_that_is_asked_what_it_does_leaves_all_generators_alone(monkeypatch):
    """`torch.manual_seed` would seed those of every device."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    model, x = nn.Sequential(nn.Linear(5, 3), Renormed()), torch.ones(4, 5)
    before = torch.get_rng_state()
    with PerSampleNorms(model) as norms:
        model(x).sum().backward()
        norms.take()
    assert not seeded
    assert torch.equal(torch.get_rng_state(), before)
