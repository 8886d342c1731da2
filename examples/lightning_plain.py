"""A digit classifier in Lightning: the plain one, to compare with lightning_digits.py."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from adamcb.lab.tasks.datasets import load_dataset


class Digits(L.LightningModule):
    """A small convolutional network for images of digits."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )

    def forward(self, x):
        """Return the score of each class."""
        return self.net(x)

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        """Log the accuracy."""
        x, y = batch
        self.log("accuracy", (self(x).argmax(dim=1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()

    L.seed_everything(1)
    images = load_dataset("digits")
    settings = {"max_epochs": args.epochs, "devices": args.devices, "accelerator": "cpu"}
    settings |= {"logger": False, "enable_checkpointing": False}
    train_loader = DataLoader(images.train, batch_size=64, shuffle=True)
    trainer = L.Trainer(**settings)
    trainer.fit(Digits(), train_loader, DataLoader(images.test, batch_size=359))
    print(f"accuracy: {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
