"""A loop written with Accelerate, on chosen batches; in one process, or in two: `torchrun --nproc-per-node 2 …`.

What keeps it unbiased: the chosen batches are not prepared, because each is shared out among the processes already; and
`split_batches=True` tells Accelerate so, or it would step the scheduler once for every process.
"""

import argparse
import csv
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader

from adamcb.integrations.accelerate import AcceleratedBatches
from adamcb.lab.tasks.datasets import load_dataset


def train(accelerator, model, optimizer, scheduler, batches):
    model.train()
    for x, y in batches:  # one epoch, or what is left of it after accelerator.load_state
        with accelerator.accumulate(model):
            losses = F.cross_entropy(model(x), y, reduction="none")  # one loss per sample
            batches.backward(losses)  # instead of accelerator.backward(losses.mean())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


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
    loading = DataLoaderConfiguration(split_batches=True)
    cpu = not torch.accelerator.is_available()  # Accelerate finds no process group on the CPU unless it is told
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=args.accumulate, dataloader_config=loading)
    images = load_dataset("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.7)
    model, optimizer, scheduler, test_loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(images.test, batch_size=128)
    )
    batches = AcceleratedBatches(accelerator, model, images.train, batch_size=64)

    log = None
    for epoch in range(batches.epoch, args.epochs):
        train(accelerator, model, optimizer, scheduler, batches)
        # A logger takes the readings as they are: accelerator.log, SummaryWriter.add_scalars, wandb.log, or a CSV file.
        readings = {"epoch": epoch, "accuracy": accuracy(accelerator, model, test_loader), **batches.meter.as_dict()}
        if accelerator.is_main_process:
            if log is None:
                log = csv.DictWriter(sys.stdout, readings)
                log.writeheader()
            log.writerow(readings)
    accelerator.end_training()


if __name__ == "__main__":
    main()
