"""Rare events in a loop of your own: one row in a hundred is positive, and batches are as small as that allows.

    python examples/rare_events.py [--epochs N] [--rows N] [--plain]

`--plain` trains on shuffled batches instead, for comparison.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, log_loss
from torch import nn
from torch.utils.data import TensorDataset

import adamcb


def main() -> nn.Module:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()

    x, y = make_classification(options.rows, n_informative=10, n_clusters_per_class=4, weights=[0.99], class_sep=2.0,
                               flip_y=0.0, random_state=0)  # fmt: skip
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    split = options.rows * 4 // 5
    train_set = TensorDataset(x[:split], y[:split])

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # Batches are as noisy as 512 rows drawn at random, and no larger than that takes.
    selection = adamcb.UniformSelection(split, 512) if options.plain else None
    smallest = None if options.plain else 64
    loader = adamcb.AdaptiveLoader(model, train_set, 512, min_batch_size=smallest, selection=selection)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))

    samples = 0
    for _ in range(options.epochs):
        for features, targets in loader:
            optimizer.zero_grad()
            losses = F.binary_cross_entropy_with_logits(model(features), targets, reduction="none")
            loader.weigh(losses).backward()
            optimizer.step()
            schedule.step()
            samples += len(targets)

    with torch.no_grad():
        probs = model(x[split:]).double().sigmoid().numpy()
    precision = average_precision_score(y[split:], probs)
    print(f"{samples} samples, average precision {precision:.3f}, log loss {log_loss(y[split:], probs):.4f}")
    return model


if __name__ == "__main__":
    main()
