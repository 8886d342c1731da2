"""A loop written with Accelerate, in one process, or in two: `torchrun --nproc-per-node 2 …`.

The plain one, to compare with accelerate_loop.py.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader

from adamcb.lab.tasks.datasets import load_dataset


def accuracy(accelerator, model, loader):
    model.eval()
    correct = []
    with torch.no_grad():
        for x, y in loader:
            correct.append(accelerator.gather_for_metrics(model(x).argmax(dim=1) == y))
    return torch.cat(correct).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(1)
    loading = DataLoaderConfiguration(split_batches=True)  # the batch size is that of all processes together
    cpu = not torch.accelerator.is_available()  # Accelerate finds no process group on the CPU unless it is told
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=args.accumulate, dataloader_config=loading)
    images = load_dataset("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.7)
    loader = DataLoader(images.train, batch_size=64, shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader, test_loader = accelerator.prepare(
        model, optimizer, scheduler, loader, DataLoader(images.test, batch_size=128)
    )
    for epoch in range(args.epochs):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}: accuracy {accuracy(accelerator, model, test_loader):.1%}")
    accelerator.end_training()
    return model


if __name__ == "__main__":
    main()
