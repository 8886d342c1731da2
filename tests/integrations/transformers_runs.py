"""Trainings by Transformers, for one process or several: small models made from a config, and the texts of pydoc."""

from __future__ import annotations

import itertools
import os
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, TrainingArguments

from adamcb import AdaptiveLoader
from adamcb.integrations.transformers import AdamCBTrainer
from tests.integrations.problem import by_epochs, new_selection, outcome

SAMPLES, BATCH_SIZE, LENGTH, EPOCHS, LR = 104, 8, 16, 2, 0.01
BATCHES, ACCUMULATE = 13, 2  # an epoch: six steps of two batches, and one of one
STOP = 10  # in the middle of the second epoch
TEXT = "".join(topics[name] for name in sorted(topics)).encode()  # a token is a byte

os.environ["HF_HUB_OFFLINE"] = "1"


def texts(same_length: bool = False) -> list[dict[str, Any]]:
    """Return texts of several lengths, padded, with columns that no model takes."""
    samples = []
    for i in range(SAMPLES):
        length = LENGTH if same_length else LENGTH // 2 + (7 * i) % (LENGTH // 2)
        tokens = torch.tensor(list(TEXT[i * LENGTH : (i + 1) * LENGTH]))
        seen = torch.arange(LENGTH) < length
        labels = torch.where(seen, tokens, -100)
        samples.append({"input_ids": tokens, "attention_mask": seen.long(), "labels": labels, "name": str(i), "row": i})
    return samples


def gpt(seed: int = 0, dropout: float = 0.0) -> GPT2LMHeadModel:
    chances = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, **chances, **_ENDS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).double()


_ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}


def bert_config(**options: Any) -> BertConfig:
    sizes = {"vocab_size": 256, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertConfig(**sizes, intermediate_size=8, max_position_embeddings=LENGTH, **options)


def arguments(folder: str, **options: Any) -> TrainingArguments:
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "log_level": "error"}
    settings = {
        "num_train_epochs": EPOCHS,
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "seed": 0,
        "save_strategy": "no",
        "per_device_train_batch_size": BATCH_SIZE // int(os.environ.get("WORLD_SIZE", 1)),
    }
    return TrainingArguments(folder, **quiet, **{**settings, **options})


def fit(folder: str, model: Any, samples: Any = None, resume: str | None = None, **options: Any) -> dict[str, Any]:
    """Train, and return what came of it."""
    choosing = {"selection": new_selection(SAMPLES, BATCH_SIZE), "scores": "exact", **options.pop("choosing", {})}
    samples = texts() if samples is None else samples
    args = arguments(folder, **options)
    trainer = AdamCBTrainer(model=model, args=args, train_dataset=samples, **choosing)
    trainer.train(resume_from_checkpoint=resume)
    return outcome(model, trainer.adaptive)


def straight_and_resumed(folder: str, dropout: float = 0.0) -> list[dict[str, Any]]:
    """Train through, saving in the middle of an epoch; train another model anew from there."""
    options: dict[str, Any] = {"gradient_accumulation_steps": ACCUMULATE}
    straight = fit(folder, gpt(dropout=dropout), save_strategy="steps", save_steps=STOP, **options)
    resumed = fit(folder, gpt(seed=1, dropout=dropout), resume=f"{folder}/checkpoint-{STOP}", **options)
    return [straight, resumed]


def own_loop(steps: list[list[int]] | None = None) -> dict[str, Any]:
    """Train by an ordinary loop over an `AdaptiveLoader`, on the mean over the tokens of the dataset.

    The Trainer takes all batches of a step before it trains on the first, and so does this loop.
    """
    model, samples = (
        gpt(),
        [{key: sample[key] for key in ("input_ids", "attention_mask", "labels")} for sample in texts()],
    )
    tokens = sum(int((sample["labels"][1:] != -100).sum()) for sample in samples) / len(samples)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    selection = new_selection(SAMPLES, BATCH_SIZE)
    with AdaptiveLoader(model, samples, BATCH_SIZE, selection=selection, scores="exact") as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for step in by_epochs(BATCHES, ACCUMULATE) if steps is None else steps:
            taken = list(itertools.islice(batches, len(step)))
            for batch in taken:
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
                losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="none").sum(1)
                (loader.weigh(losses / tokens, draw=batch.draw) / len(step)).backward()
            loader.learn()
            optimizer.step()
            optimizer.zero_grad()
        return outcome(model, loader)
