"""The training loop of nanoGPT on a text: accumulation, clipping, warmup and cosine, autocast and a GradScaler.

Chosen batches by two changed lines, marked `# adamcb`. `diff` with nanogpt_plain.py shows them.
"""

import argparse
import itertools
import math
import pydoc_data.topics

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import adamcb


class GPT(nn.Module):
    """A decoder-only Transformer on bytes."""

    def __init__(self, width, layers, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        """Return the logits of the next byte at each place."""
        places = torch.arange(x.shape[1], device=x.device)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.blocks(self.tokens(x) + self.places(places), mask=mask, is_causal=True))


def sequences(length, count):
    text = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).encode()
    bytes_ = torch.tensor(list(text[: count * length + 1]))
    return TensorDataset(bytes_[:-1].view(count, length), bytes_[1:].view(count, length))


def learning_rate(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 * args.lr + 0.45 * args.lr * (1.0 + math.cos(math.pi * progress))


def main():
    parser = argparse.ArgumentParser(description="A small GPT on the texts of pydoc")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(1)
    train_set = sequences(args.length, args.samples)
    model = GPT(args.width, args.layers, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loader = adamcb.AdaptiveLoader(model, train_set, args.batch_size)  # adamcb
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    x, y = next(batches)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        for _ in range(args.accumulate):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = loader.weigh(F.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(1))  # adamcb
                loss = loss / args.accumulate
            x, y = next(batches)  # the next batch is fetched while this one goes backward
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {args.accumulate * loss.item():.4f}")

    with torch.no_grad():
        x, y = train_set[:512]
        print(f"mean loss: {F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item():.4f}")
    return model


if __name__ == "__main__":
    main()
