"""What to say of `sharded=True` where a framework saves the state of one rank."""

from __future__ import annotations

from typing import Any

from adamcb import _checks


def refuse_sharded(sharded: Any, num_ranks: int, framework: str) -> None:
    """Raise if weights are sharded: the framework would save only rank 0's.

    Args:
        sharded: What `AdaptiveLoader` is given.
        num_ranks: How many ranks train together.
        framework: Who saves, for the message.
    """
    if not isinstance(sharded, (bool, int)):
        raise _checks.wrong_type("sharded", "be True, False or the number of strata", sharded)
    if num_ranks > 1 and sharded is not False:
        raise ValueError(
            f"`sharded` must be False with several ranks, got sharded={sharded} with {num_ranks}: every rank would "
            f"hold the weights of its own samples, and {framework} saves one state, that of rank 0, from which the "
            "others could not go on. Use AdamCB in a loop of your own, and save by torch.distributed.checkpoint: "
            '`dcp.save({"trainer": trainer}, checkpoint_id=folder)`.'
        )
