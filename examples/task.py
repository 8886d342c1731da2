"""A problem of your own for `adamcb compare`: a regression whose targets have a heavy tail.

    adamcb compare --task examples/task.py:task
    python examples/task.py

A task is data: how to build the model, what to train and test on, one loss for each sample, and metrics.
"""

import torch
from sklearn.datasets import make_friedman1
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import lab
from adamcb.lab import metrics

x, f = make_friedman1(10_000, random_state=0)
inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(f / 3.0, dtype=torch.float32).exp()
targets = targets / targets.std()


def build() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1), nn.Flatten(0)
    )


def loss(model, batch):
    features, wanted = batch
    return (model(features) - wanted).square()


def predict(model, batch):
    features, wanted = batch
    return model(features), wanted


task = lab.Task(
    "tail",
    build,
    TensorDataset(inputs[:8000], targets[:8000]),
    TensorDataset(inputs[8000:], targets[8000:]),
    loss=loss,
    predict=predict,
    metrics={"RMSE": metrics.rmse},
    epochs=5,
)

if __name__ == "__main__":
    print(lab.compare(task, methods=("adam", "adamcb"), seeds=2).verdict)
