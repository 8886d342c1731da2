"""Batch selection by itself: promises kept, and a bandit that finds the hard samples of real digits.

A softmax classifier is trained on scikit-learn's handwritten digits. Its per-sample gradient norm has a closed form
(‖p − y‖·‖x‖), so that nothing but selection is needed to see what selection does.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from adamcb import CombinatorialBandit, Draw, Selection, UniformSelection

BATCH_SIZE, STEPS, LEARNING_RATE = 32, 3000, 0.05


def promises_kept() -> None:
    """Count how often each sample is drawn, beside the probability that it was promised."""
    bandit = CombinatorialBandit(6, 2, exploration=0.1, generator=torch.Generator().manual_seed(0))
    bandit.weights = [1.0, 2.0, 4.0, 8.0, 16.0, 100.0]
    promised, rounds = bandit.inclusion_probs(), 50_000
    counts = sum(np.bincount(bandit.draw().indices, minlength=6) for _ in range(rounds))
    print("Six samples with weights 1, 2, 4, 8, 16, 100; 50,000 batches of 2")
    print("  promised:", "  ".join(f"{p:.4f}" for p in promised))
    print("  drawn:   ", "  ".join(f"{c / rounds:.4f}" for c in counts))


def train(selection: Selection, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Train by plain gradient steps; return the mean loss, and the batch gradient's second moment against uniform."""
    theta = np.zeros((x.shape[1], 10))
    size = np.linalg.norm(x, axis=1)
    for _ in range(STEPS):
        draw: Draw = selection.draw()
        error = softmax(x[draw.indices] @ theta) - np.eye(10)[y[draw.indices]]
        norms = np.linalg.norm(error, axis=1) * size[draw.indices]
        theta -= LEARNING_RATE * x[draw.indices].T @ (error * draw.loss_weights[:, None])
        selection.update(draw, norms)
    probs = softmax(x @ theta)
    norms = np.linalg.norm(probs - np.eye(10)[y], axis=1) * size
    second_moment = np.sum(norms**2 / selection.inclusion_probs())
    uniform = np.sum(norms**2) * len(x) / BATCH_SIZE
    return float(-np.log(probs[np.arange(len(x)), y]).mean()), float(second_moment / uniform)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def main() -> None:
    promises_kept()
    pixels, labels = load_digits(return_X_y=True)
    x = np.hstack([pixels / 16.0, np.ones((len(pixels), 1))])
    print(f"\nSoftmax regression on {len(x)} handwritten digits, {STEPS} steps of {BATCH_SIZE}")
    print("  selection                     final loss   second moment of the batch gradient / uniform")
    for name, feedback in (
        ("uniform (reshuffled)", None),
        ("bandit (the paper)", "bandit"),
        ("scale-free", "scale-free"),
    ):
        generator = torch.Generator().manual_seed(0)
        if feedback is None:
            selection = UniformSelection(len(x), BATCH_SIZE, generator=generator)
        else:
            selection = CombinatorialBandit(len(x), BATCH_SIZE, feedback=feedback, generator=generator)
        loss, variance = train(selection, x, labels)
        print(f"  {name:28}  {loss:10.4f}   {variance:.3f}")


if __name__ == "__main__":
    main()
