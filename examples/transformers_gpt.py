"""A small GPT, made from a config, learns the texts of Python's own documentation byte by byte, by chosen batches."""

import argparse
import tempfile
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from adamcb.integrations.transformers import AdamCBTrainer  # instead of transformers.Trainer

LENGTH = 64


class LogMeter(TrainerCallback):
    """Sends the meter's readings where the Trainer's own go: TensorBoard, Weights & Biases, the terminal."""

    def on_epoch_end(self, args, state, control, **kwargs):
        """Log once an epoch."""
        self.trainer.log(self.trainer.meter.as_dict())


def read_texts(count):
    """Return blocks of bytes, each a text and its own labels."""
    text = "".join(topics[name] for name in sorted(topics)).encode()
    blocks = torch.tensor(list(text[: count * LENGTH])).view(count, LENGTH)
    return [{"input_ids": block, "labels": block} for block in blocks]


def main():
    parser = argparse.ArgumentParser(description="GPT on the texts of pydoc")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out", default=None, help="folder of checkpoints; resumes if there are any")
    args = parser.parse_args()

    torch.manual_seed(1)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=args.width, n_layer=2, n_head=4, **ends)
    settings = TrainingArguments(
        args.out or tempfile.mkdtemp(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        save_strategy="no" if args.out is None else "epoch",
        report_to="none",
    )
    meter = LogMeter()
    trainer = AdamCBTrainer(
        model=GPT2LMHeadModel(config), args=settings, train_dataset=read_texts(args.samples), callbacks=[meter]
    )
    meter.trainer = trainer
    result = trainer.train()
    print(f"mean loss: {result.training_loss:.3f}")
    print(trainer.meter)


if __name__ == "__main__":
    main()
