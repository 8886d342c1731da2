"""Parameters that no optimizer steps on: noticed at the beginning of an epoch, and when they are unfrozen."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb._warn import warn_user


class LeftOut:
    """Warns of trainable parameters that no optimizer holds, once for each set of them."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self._told: list[str] = []
        self._frozen: list[Tensor] = []

    def look(self) -> None:
        """Warn if there are any, and remember the frozen ones, in case they are unfrozen."""
        held = {
            id(parameter) for one in self._optimizers for group in one.param_groups for parameter in group["params"]
        }
        left_out = {name: each for name, each in self._model.named_parameters() if id(each) not in held}
        trainable = [name for name, parameter in left_out.items() if parameter.requires_grad]
        if trainable and trainable != self._told:
            _warn(trainable)
        self._told = trainable
        self._frozen = [parameter for parameter in left_out.values() if not parameter.requires_grad]

    def look_again(self) -> None:
        """Do the same if one of the frozen parameters is no longer frozen."""
        if any(parameter.requires_grad for parameter in self._frozen):
            self.look()


def _warn(names: Sequence[str]) -> None:
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    warn_user(
        f"AdamCB: no optimizer steps on {listed}. Add them to the optimizer (`optimizer.add_param_group`), or freeze "
        "them (`requires_grad_(False)`)."
    )
