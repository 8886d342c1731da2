"""Accelerate: nothing but `AdaptiveLoader` is needed; this module checks that the Accelerator does not get in its way.

    model, optimizer = accelerator.prepare(model, optimizer)
    loader = AdaptiveLoader(model, train_set, batch_size=128)
    check_accelerator(accelerator)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loader.weigh(F.cross_entropy(model(x), y, reduction="none")))
            optimizer.step()
            optimizer.zero_grad()

`accelerator.prepare` leaves an `AdaptiveLoader` as it is: it shares out its batches itself. For checkpoints,
`accelerator.register_for_checkpointing(loader)`, before the check; with `sharded`, torch.distributed.checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from adamcb import _checks
from adamcb.integrations._missing import missing
from adamcb.integrations._sharded import refuse_sharded
from adamcb.selection import Strata
from adamcb.training import AdaptiveLoader

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise missing("accelerate") from error

__all__ = ["check_accelerator"]


def check_accelerator(accelerator: Accelerator) -> None:
    """Raise for what would bias the gradient, or make training depend on the number of processes.

    Raises:
        ValueError: If Accelerate does not know of the other processes, has prepared a learning-rate scheduler that it
            would step once for every process, or is to save a loader with sharded weights.
        NotImplementedError: If the model is not whole in every process.

    Example:
        >>> accelerator = Accelerator()
        >>> model, optimizer = accelerator.prepare(model, optimizer)
        >>> check_accelerator(accelerator)
    """
    if not hasattr(accelerator, "distributed_type"):
        raise _checks.wrong_type("accelerator", "be an Accelerator", accelerator)
    kind = accelerator.distributed_type
    if kind is not DistributedType.NO and not kind.value.startswith("MULTI_"):
        raise NotImplementedError(f"The model must be whole in every process, got distributed_type={kind.value}.")
    for kept in accelerator._custom_objects:
        if isinstance(kept, AdaptiveLoader):
            refuse_sharded(isinstance(kept.selection, Strata), accelerator.num_processes, "Accelerate")
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks != accelerator.num_processes:
        raise ValueError(
            f"The Accelerator must know all processes, got num_processes={accelerator.num_processes} in a process "
            f"group of {ranks}: gradients would not be averaged. On CPUs, use Accelerator(cpu=True)."
        )
    if accelerator.num_processes > 1 and any(map(_steps_too_often, accelerator._schedulers)):
        raise ValueError(
            f"`split_batches` must be True for a prepared scheduler, got split_batches=False: it would step "
            f"{accelerator.num_processes} times at each step, but K is the batch size of all processes together. Use "
            "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)), or do not prepare it."
        )


def _steps_too_often(scheduler: Any) -> bool:
    return scheduler.step_with_optimizer and not scheduler.split_batches
