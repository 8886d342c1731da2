"""A small BERT on Tiny Shakespeare: does a person without a name speak, a servant, a citizen, the nurse?

The file is text/tinyshakespeare.txt. A sample is a speech. Its speaker stands above it: names are written in capitals,
as ROMEO, and others are not, as First Citizen. The model starts from random weights and sees the speech alone.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DataFileError, find_file
from adamcb.lab.tasks.rare_events import RARE_METRICS
from adamcb.lab.tasks.task import Task

LENGTH = 48  # words and punctuation marks of a speech; what comes later is cut off
TEST_SHARE = 0.2
SPLIT_SEED = 0
PAD, UNKNOWN, START = range(3)


def speakers(data_dir: str | None = None) -> Task:
    """Return the task: a BERT with two layers of 128 tells who has no name, with AdamW, warmup and cosine decay."""
    train, test, num_words = read_speeches(find_file("text", "tinyshakespeare.txt", data_dir))
    return Task(
        "speakers",
        partial(Classifier, num_words),
        train,
        test,
        metrics={**RARE_METRICS, "accuracy": metrics.accuracy},
        batch_size=32,
        lr=3e-4,
        schedule="warmup-cosine",
        epochs=4,
        optimizer="adamw",
        weight_decay=0.01,
    )


def read_speeches(path: Path, length: int = LENGTH) -> tuple[TensorDataset, TensorDataset, int]:
    """Return (words int64 [n, length], label int64 [n]) for training and for testing, and how many words are known.

    A word is known if it occurs twice in the speeches for training.
    """
    parts = [part.split(":\n", 1) for part in path.read_text(encoding="utf-8").split("\n\n")]
    found = [(who, re.findall(r"[a-z']+|[.,;:!?]", text.lower())) for who, text in (p for p in parts if len(p) == 2)]
    labels = torch.tensor([int(who != who.upper()) for who, _ in found])
    if not 0 < int(labels.sum()) < len(labels):
        raise DataFileError(
            f"{path} must have speeches of speakers with and without a name, got {len(labels)} speeches."
        )
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out, kept = order.split([round(TEST_SHARE * len(found)), len(found) - round(TEST_SHARE * len(found))])
    counts = Counter(word for index in kept.tolist() for word in found[index][1])
    known = {word: START + 1 + place for place, word in enumerate(sorted(w for w, n in counts.items() if n > 1))}
    words = torch.full((len(found), length), PAD)
    for row, (_, speech) in zip(words, found, strict=True):
        codes = [START, *(known.get(word, UNKNOWN) for word in speech[: length - 1])]
        row[: len(codes)] = torch.tensor(codes)
    train, test = (TensorDataset(words[part], labels[part]) for part in (kept, held_out))
    return train, test, START + 1 + len(known)


class Classifier(nn.Module):
    """Transformers' BERT with random weights: words int64 [batch, length] to logits [batch, 2]."""

    def __init__(self, num_words: int, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        settings: Any = {"num_attention_heads": 2, "max_position_embeddings": LENGTH, "num_labels": 2}
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
        config = BertConfig(vocab_size=num_words, **sizes, **settings)
        self.bert = BertForSequenceClassification(config)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of every speech."""
        return self.bert(input_ids=words, attention_mask=words != PAD).logits
