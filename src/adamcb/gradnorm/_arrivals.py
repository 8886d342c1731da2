"""What happens when gradients arrive: each use of a parameter turns them into its part of the K gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm import _compat
from adamcb.gradnorm._batch import Batch, Mixed
from adamcb.gradnorm._call import Call, Use, tensors_in
from adamcb.gradnorm._graph import Again, Pick, node_of, supply_gradients
from adamcb.gradnorm._parts import without_autocast
from adamcb.gradnorm._record import TracedPass, totals

Grads = tuple[Tensor | None, ...]


class Arrivals:
    """Hangs the uses of parameters on the graph of one forward pass.

    Args:
        record: Where the norms go.
        names: From parameters to their names, for error messages.
    """

    def __init__(self, record: TracedPass, names: Callable[[Sequence[Any]], str]) -> None:
        self._record, self._names = record, names
        self._operations, self._inner = 0, 0

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Ignore gradients that are not those of the losses."""
        self._inner += 1
        try:
            yield
        finally:
            self._inner -= 1

    def run(self, call: Call, forming: list[Use]) -> Any:
        """Run the operation with the parameters detached whose gradients will be supplied, so that autograd skips them.

        A convolution's bias has to go with its weight: autograd computes both to get one.
        """
        self._operations += 1
        counts = [len(use.saved) for use in forming]
        supply = functools.partial(self._supply, forming, counts, self._operations)
        saved, run = [tensor for use in forming for tensor in use.saved], forming[0].run
        for use in forming:  # autograd keeps what they read, and frees it
            use.saved, use.run = (), None
        if run is not None:
            return run(supply)
        swap = {id(use.tensor): use.tensor.detach() for use in forming}
        args = [swap.get(id(arg), arg) for arg in call.args]
        kwargs = {key: swap.get(id(arg), arg) for key, arg in call.kwargs.items()}
        again = Again(call.func, call.args, call.kwargs, [use.tensor for use in forming])
        return supply_gradients(call.func(*args, **kwargs), supply, saved, again)

    def attach(self, call: Call, uses: list[Use], out: Any, *, custom: bool = False) -> None:
        """Let uses measure the gradient of an operation's result, or `take` fail where that has no samples."""
        if type(call.out) is not Batch:
            why = f": {call.out.why}" if type(call.out) is Mixed else ""
            for result in tensors_in(out):
                text = f"`{call.name}` uses {self._names(call.leaves())} where the samples cannot be told apart{why}"
                self.refuse(result, f"{text}.")
        elif uses:
            node, pick = node_of(call, out, custom=custom)
            self._operations += 1
            # Before the node runs, and so after whatever hooks the user puts on the result.
            node.register_prehook(functools.partial(self._observe, uses, self._operations, pick, custom))

    def refuse(self, result: Tensor, why: str) -> None:
        """Let `take` fail if a gradient ever reaches this tensor."""
        if result.grad_fn is not None:
            result.grad_fn.register_prehook(functools.partial(_reject, self._record, why))

    def reject(self, why: str) -> None:
        """Let `take` fail, unless gradients arrive that are not those of the losses."""
        if not self._inner:
            self._record.reject(why)

    def _observe(self, uses: list[Use], operation: int, pick: Pick, custom: bool, grads: Grads) -> None:
        grad = None if self._inner else pick(grads)
        if grad is None or not self._record.begin(operation):
            return
        if torch.is_grad_enabled() or _compat.autocasting():  # create_graph=True, or a backward pass inside autocast
            # The backward of a custom function finds autocast as autograd leaves it.
            with torch.no_grad(), contextlib.nullcontext() if custom else without_autocast():
                self._record.observe(uses, grad)
        else:
            self._record.observe(uses, grad)
        uses.clear()  # autograd lets go of what it saved at this point; so do the rules

    def _supply(
        self, uses: list[Use], counts: list[int], operation: int, grad: Tensor, saved: Sequence[Tensor]
    ) -> list[Tensor]:
        counted = not self._inner and self._record.begin(operation)
        with torch.no_grad(), without_autocast() if _compat.autocasting() else contextlib.nullcontext():
            supplied, start = [], 0
            for use, count in zip(uses, counts, strict=True):
                mine = saved[start : start + count]
                start += count
                supplied += self._record.supply(use, grad, mine) if counted else totals(use, use.part(grad, *mine))
        return supplied


def _reject(record: TracedPass, why: str, grads: Grads) -> None:
    if any(grad is not None for grad in grads):
        record.reject(why)
