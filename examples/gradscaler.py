"""Mixed precision with a GradScaler, clipping, a cosine schedule and an average of the weights.

Chosen batches by two changed lines, marked `# adamcb`. `diff` with gradscaler_plain.py shows them.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import adamcb
from adamcb.lab.tasks.datasets import load_dataset


def network():
    layers = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(*layers)


def accuracy(model, samples):
    images, labels = samples.tensors
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(1)
    images = load_dataset("digits")
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    loader = adamcb.AdaptiveLoader(model, images.train, batch_size=64)  # adamcb
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
            loss = loader.weigh(F.cross_entropy(logits.float(), y, reduction="none"))  # adamcb
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            average.update_parameters(model)
        print(f"epoch {epoch + 1}: accuracy {accuracy(model, images.test):.1%}")
    print(f"accuracy of the average: {accuracy(average, images.test):.1%}")
    return model


if __name__ == "__main__":
    main()
