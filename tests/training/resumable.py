"""A training run as a user would write it, that can be killed at any moment and started again."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

from adamcb import AdamCB
from tests.training.problem import digits, eager, losses_of

SAMPLES, BATCH_SIZE, EPOCHS, SAVE_EVERY = 320, 16, 8, 3
STEPS = EPOCHS * (SAMPLES // BATCH_SIZE)


class Noisy(Dataset):
    """Digits with fresh noise in every sample, from torch's global generator: a random transform."""

    def __init__(self) -> None:
        self.images, self.labels = digits(SAMPLES).tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index] + 0.1 * torch.randn(1, 8, 8), self.labels[index]


def run(folder: Path, num_workers: int, progress: Connection | None) -> None:
    """Train to the end, going on from the checkpoint if there is one, and write the result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
    # Forked: workers must be children of this process, or they would not notice its death.
    workers = {"num_workers": num_workers, "multiprocessing_context": "fork"} if num_workers else {}
    trainer = AdamCB(
        model, Noisy(), BATCH_SIZE, lr=0.01, selection=eager(SAMPLES, BATCH_SIZE), feedback_delay=num_workers, **workers
    )
    scheduler = StepLR(trainer.optimizer, step_size=1, gamma=0.9)
    losses, accuracies = [], []

    def save() -> None:
        metrics = {"losses": losses, "accuracies": accuracies}
        trainer.save(folder / "checkpoint.pt", extra={"metrics": metrics, "scheduler": scheduler.state_dict()})

    if (folder / "checkpoint.pt").exists():
        saved = trainer.load(folder / "checkpoint.pt")
        scheduler.load_state_dict(saved["scheduler"])
        losses, accuracies = saved["metrics"]["losses"], saved["metrics"]["accuracies"]
    if progress is not None:
        progress.send(len(losses))
    for _ in range(trainer.epoch, EPOCHS):
        for x, y in trainer:
            losses.append(trainer.step(losses_of(model, x, y)).item())
            if len(losses) % SAVE_EVERY == 0:
                save()
            if progress is not None:
                progress.send(len(losses))
        scheduler.step()
        accuracies.append(accuracy(model))
        save()
    readings = {name: value for name, value in trainer.meter.as_dict().items() if not name.startswith("seconds")}
    weights = torch.tensor(trainer.selection.weights)  # pyright: ignore[reportAttributeAccessIssue]
    result = {"model": model.state_dict(), "weights": weights, "readings": readings}
    torch.save({**result, "losses": losses, "accuracies": accuracies}, folder / "result.pt")


def accuracy(model: nn.Module) -> float:
    x, y = digits().tensors
    model.eval()
    with torch.no_grad():
        correct = (model(x).argmax(1) == y).sum().item() / len(y)
    model.train()
    return correct
