"""What each of two hosts runs under torchrun: train, save every fifth step, and go on from the last save.

    torchrun ... -m tests.distributed.two_hosts FOLDER TIMEOUT STEPS [CUT_AT]

At step CUT_AT, between backward and learning, rank 1 says so and waits until somebody has cut its host off.
"""

import datetime
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint

from tests.distributed.problem import new_trainer, result
from tests.training.problem import losses_of

dcp: Any = torch.distributed.checkpoint


def main(folder: Path, timeout: float, steps: int, cut_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    trainer, saved = new_trainer(), folder / "saved"
    if (saved / ".metadata").exists():
        dcp.load({"trainer": trainer}, checkpoint_id=saved)
        (folder / f"resumed-{dist.get_rank()}").write_text(str(trainer.meter.steps))
    while trainer.meter.steps < steps:
        for x, y in trainer:
            trainer.optimizer.zero_grad()
            trainer.weigh(losses_of(trainer.model, x, y)).backward()
            if trainer.meter.steps == cut_at:
                wait_for_the_cut(folder)
            try:
                trainer.learn()
            except RuntimeError as error:
                (folder / f"failed-{dist.get_rank()}").write_text(str(error))
                raise
            trainer.optimizer.step()
            if trainer.meter.steps % 5 == 0:
                dcp.save({"trainer": trainer}, checkpoint_id=saved)
            if trainer.meter.steps == steps:
                break
    np.save(folder / f"parameters-{dist.get_rank()}.npy", result(trainer)["parameters"])


def wait_for_the_cut(folder: Path) -> None:
    if dist.get_rank() == 1:
        (folder / "ready").touch()
        while not (folder / "cut").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else -1)
