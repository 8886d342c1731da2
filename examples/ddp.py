"""Several processes, one model, one draw: what one process writes, and three lines more.

    torchrun --nproc-per-node 2 examples/ddp.py --dataset digits --csv run.csv

The lines marked `# ranks` are what makes it more than one process; they are PyTorch's own. Started with `python`, it
trains alone, on the same draws. Stopped at any moment, the same command goes on from the last checkpoint, with the same
number of processes or another.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adamcb
from adamcb.lab.tasks.datasets import load_dataset


class Loggers:
    """The meter's dict as it is, into whatever is asked for: a CSV file, TensorBoard, Weights & Biases."""

    def __init__(self, args):
        self.file = self.board = self.wandb = None
        if args.csv:
            self.file = open(args.csv, "a", newline="")
        if args.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(args.tensorboard)
        if args.wandb:
            import wandb

            self.wandb = wandb.init(project=args.wandb)

    def log(self, readings, step):
        """Write one row."""
        if self.file:
            writer = csv.DictWriter(self.file, readings)
            if self.file.tell() == 0:
                writer.writeheader()
            writer.writerow(readings)
            self.file.flush()
        if self.board:
            for name, value in readings.items():
                self.board.add_scalar(name, value, step)
        if self.wandb:
            self.wandb.log(readings, step=step)


def network(num_pixels, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(num_pixels, 128), nn.ReLU(), nn.Linear(128, num_classes))


def accuracy(model, samples, device):
    images, labels = samples.tensors
    with torch.no_grad():
        return (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()


def train(args):
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device("cpu") if accelerator is None else accelerator
    if accelerator is not None and dist.is_initialized():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))  # ranks
    first = not dist.is_initialized() or dist.get_rank() == 0

    data = load_dataset(args.dataset)
    torch.manual_seed(0)
    model = network(data.train.tensors[0][0].numel(), data.num_classes).to(device)
    trained = DistributedDataParallel(model) if dist.is_initialized() else model  # ranks
    trainer = adamcb.AdamCB(trained, data.train, args.batch_size, sharded=args.sharded)

    if args.checkpoint and args.checkpoint.exists():
        trainer.load(args.checkpoint)
    loggers = Loggers(args) if first else None
    for epoch in range(trainer.epoch, args.epochs):
        for x, y in trainer:
            trainer.step(F.cross_entropy(trained(x), y, reduction="none"))
        if args.checkpoint:
            trainer.save(args.checkpoint)  # rank 0 writes; if sharded, each its own
        if loggers:
            loggers.log(trainer.meter.as_dict(), trainer.meter.steps)
            print(f"epoch {epoch + 1}: accuracy {accuracy(model, data.test, device):.2%}; {trainer.meter}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist", choices=("mnist", "fashion-mnist", "digits"))
    parser.add_argument("--batch-size", type=int, default=128, help="of all processes together")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sharded", action="store_true", help="each process keeps the weights of its own samples")
    parser.add_argument("--checkpoint", type=Path, help="where to save after every epoch, and go on from")
    parser.add_argument("--csv", type=Path, help="log to a CSV file")
    parser.add_argument("--tensorboard", type=Path, help="log to TensorBoard event files in this folder")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to Weights & Biases")
    args = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group()  # ranks: nccl on GPUs, gloo on CPUs
    train(args)
    if dist.is_initialized():
        dist.destroy_process_group()  # not in `train`, whose wrapped model must be gone: torch may hang otherwise


if __name__ == "__main__":
    main()
