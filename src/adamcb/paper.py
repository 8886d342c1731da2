"""The paper's algorithms to the letter, in its order: "Adam Optimization with Adaptive Batch Selection", ICLR 2025.

Every function composes the parts of this package with the settings that the paper prints. What the paper leaves open,
and where its text is wrong, is on docs/paper.md. The recommended form of each part is the bare one (`adamcb.AdamCB`).

    Algorithm 1  AdamCB: AdamX on batches that Algorithm 2 chooses      adamcb(...)
    Algorithm 2  Batch-Selection: cap, probabilities, DepRound          CombinatorialBandit(n, K).draw()
    Algorithm 3  Weight-Update                                          adamcb(..., listing=True)
                 the form that the proof of Lemma 2 uses                adamcb(...)
    Algorithm 4  AdamBS, corrected                                      adambs(...)
    Algorithm 5  its weight update                                      ReplacementBandit(n, K).update(draw, scores)
    Algorithm 6  DepRound                                               depround(inclusion_probs)
    Algorithm 7  Weight-Update with the largest norm seen as L          max_norm=None, the default
    Table 2      lr 0.001, β₁ 0.9, β₂ 0.999, λ 1 − 1e-8, ε 1e-8, γ 0.4, K 128: the defaults here
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import ParamsT

from adamcb import _checks
from adamcb.optim import AdamX
from adamcb.selection import (
    CombinatorialBandit,
    ListingFeedback,
    ProofFeedback,
    ReplacementBandit,
    Selection,
)
from adamcb.training import AdamCB

__all__ = ["adambs", "adambs_original", "adamcb", "adamx"]


def adamcb(
    model: nn.Module,
    dataset: Any,
    batch_size: int = 128,
    lr: float | Tensor = 1e-3,
    *,
    exploration: float = 0.4,
    max_norm: float | None = None,
    listing: bool = False,
    seed: int = 0,
    **options: Any,
) -> AdamCB:
    """Return Algorithm 1: AdamX without bias correction, on batches of the combinatorial bandit.

    Args:
        model: The model.
        dataset: n samples.
        batch_size: K.
        lr: α.
        exploration: γ.
        max_norm: L, a bound on the gradient norms. None: the largest norm seen so far (Algorithm 7).
        listing: Change weights as Algorithm 3 is printed, −(Kγ/n)·ℓ, not as its proof needs it, −(Kγ/n)·ℓ/p.
        seed: Seeds the bandit, and random transforms in the workers.
        options: What else `AdamCB` takes.

    Example:
        >>> dataset = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 600).view(200, 3), torch.arange(200) % 2)
        >>> model = nn.Linear(3, 2)
        >>> trainer = adamcb(model, dataset, batch_size=20)
        >>> for x, y in trainer:
        ...     loss = trainer.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    """
    settings = _settings(model, dataset, exploration, seed)
    feedback = ListingFeedback(max_norm) if _checks.boolean("listing", listing) else ProofFeedback(max_norm)
    selection = CombinatorialBandit(batch_size=batch_size, feedback=feedback, gate=None, **settings)
    return _trainer(model, dataset, selection, adamx(_trainable(model), lr), seed=seed, **options)


def adambs(
    model: nn.Module,
    dataset: Any,
    batch_size: int = 128,
    lr: float | Tensor = 1e-3,
    *,
    exploration: float = 0.4,
    max_norm: float | None = None,
    seed: int = 0,
    **options: Any,
) -> AdamCB:
    """Return Algorithm 4: the paper's corrected AdamBS, AdamX on K draws with replacement. Arguments as `adamcb`.

    Example:
        >>> dataset = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 600).view(200, 3), torch.arange(200) % 2)
        >>> model = nn.Linear(3, 2)
        >>> adambs(model, dataset, batch_size=20).selection.batch_size
        20
    """
    settings = _settings(model, dataset, exploration, seed)
    selection = ReplacementBandit(batch_size=batch_size, max_norm=max_norm, **settings)
    return _trainer(model, dataset, selection, adamx(_trainable(model), lr), seed=seed, **options)


def adambs_original(
    model: nn.Module,
    dataset: Any,
    batch_size: int = 128,
    lr: float | Tensor = 1e-3,
    *,
    exploration: float = 0.4,
    max_norm: float | None = None,
    seed: int = 0,
    **options: Any,
) -> AdamCB:
    """Return AdamBS as Liu, Wu and Mozafari (2020) have it: Adam, and probabilities projected above a floor.

    Arguments as `adamcb`.

    Example:
        >>> dataset = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 600).view(200, 3), torch.arange(200) % 2)
        >>> model = nn.Linear(3, 2)
        >>> type(adambs_original(model, dataset, batch_size=20).optimizer).__name__
        'Adam'
    """
    settings = _settings(model, dataset, exploration, seed)
    selection = ReplacementBandit(batch_size=batch_size, form="original", max_norm=max_norm, **settings)
    _checks.learning_rate(lr)
    return _trainer(model, dataset, selection, Adam(_trainable(model), lr), seed=seed, **options)


def adamx(params: ParamsT, lr: float | Tensor = 1e-3) -> AdamX:
    """Return lines 4 to 7 of Algorithm 1: AdamX with Table 2's constants, without bias correction.

    Example:
        >>> optimizer = adamx(nn.Linear(3, 2).parameters(), lr=1e-3)
    """
    return AdamX(params, lr, betas=(0.9, 0.999), eps=1e-8, beta1_decay=1 - 1e-8, bias_correction=False)


def _settings(model: Any, dataset: Any, exploration: float, seed: int) -> dict[str, Any]:
    """Return what every bandit here is made with."""
    _checks.instance("model", model, nn.Module, "a torch.nn.Module")
    generator = torch.Generator().manual_seed(_checks.seed("seed", seed))
    num_samples = _checks.map_style("dataset", dataset)
    return {"num_samples": num_samples, "exploration": exploration, "generator": generator}


def _trainer(model: nn.Module, dataset: Any, selection: Selection, optimizer: Optimizer, **options: Any) -> AdamCB:
    given = {"selection": selection, "optimizer": optimizer, "scores": "exact"}
    return AdamCB(model, dataset, selection.batch_size, **given, **options)


def _trainable(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
