"""Traces the operations of one forward pass and attaches a rule to each that uses a parameter.

Nothing is left on modules or parameters: rules hang on the graph of this forward pass and go with it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from adamcb.gradnorm import _compat, _replay
from adamcb.gradnorm._batch import Batch, Mixed
from adamcb.gradnorm._call import Call, Mark, Origin, Use, is_in_place, is_parameter, tensors_in, trains
from adamcb.gradnorm._composite import COMPOSITES
from adamcb.gradnorm._graph import Pick, leaves_behind, node_of, supplies, supply_gradients
from adamcb.gradnorm._guard import Guard
from adamcb.gradnorm._parts import without_autocast
from adamcb.gradnorm._places import Places, Written, same_shape
from adamcb.gradnorm._record import TracedPass, totals
from adamcb.gradnorm._table import PLAIN, TENSOR_ATTRIBUTES, operation_of

Grads = tuple[Tensor | None, ...]

_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
_CONVERSIONS = {"to", "type_as"}
_SUMS = {"add", "__add__", "__radd__"}
_PIECES = {"unbind", "chunk", "split", "split_with_sizes", "tensor_split"}
_TRANSPOSES = {"t", "T", "mT", "transpose", "permute", "swapaxes", "swapdims"}


class Tracer(TorchFunctionMode):
    """Follows the batch through one forward pass.

    Args:
        record: Where the norms go.
        owner: Who set the tracer to work.
        places: Finds the samples in the results of operations.
        guard: Compares parts with gradients, all of which autograd then computes itself.
        names: From parameters to their names, for error messages.
    """

    def __init__(
        self,
        record: TracedPass,
        owner: Any = None,
        *,
        places: Places | None = None,
        guard: Guard | None = None,
        names: Callable[[Sequence[Any]], str] = lambda leaves: "parameters",
    ) -> None:
        super().__init__()
        self.record, self.owner = record, owner
        self._places, self._guard, self._names = places or Places(), guard, names
        self._marks: dict[int, tuple[weakref.ref, Mark]] = {}
        self._written: dict[int, Written] = {}
        self._made: dict[Any, Origin] = {}
        self._noticed: weakref.WeakSet = weakref.WeakSet()
        self._operations, self._inner = 0, 0
        self._again = False
        self._start = _compat.now()

    @property
    def checked(self) -> bool:
        """Whether autograd must compute all gradients itself, so that parts can be compared with them."""
        return self._guard is not None

    def mark_inputs(self, inputs: Any, samples: Tensor | None = None) -> None:
        """Note where the inputs hold the samples: along their first dimension."""
        for tensor, mark in self._places.of_inputs(tensors_in(inputs), samples):
            self.mark(tensor, mark)

    def mark(self, tensor: Tensor, mark: Mark) -> None:
        """Note what is known of a tensor, for as long as it lives."""
        self._marks[id(tensor)] = (weakref.ref(tensor), mark)

    def mark_samples(self, tensor: Tensor, batch: Batch) -> None:
        """Note where an operation's convention puts the samples; what is made of parameters alone holds none."""
        known = self.mark_of(tensor)
        if type(known) is Batch and not known.agrees(batch) and known.size > 1 and self.record.uses:
            self.record.error = (
                f"a layer takes dimension {batch.dim} of a tensor of shape {tuple(tensor.shape)} for the batch, but by "
                f"the model's inputs, which have the batch first, it is dimension {known.dim}. Give the model inputs "
                "whose first dimension is the batch."
            )
        if type(known) is not Origin:
            self.mark(tensor, batch)

    def mark_of(self, tensor: Tensor) -> Mark | None:
        """Return what is known of a tensor, None for a constant."""
        found = self._marks.get(id(tensor))
        if found is not None and found[0]() is tensor:
            mark = found[1]
            stopped = type(mark) is Origin and not tensor.requires_grad and torch.is_grad_enabled()
            return None if stopped else mark
        if self._written and (written := self._written.get(id(tensor))) and written.base() is tensor:
            return written.mark()
        if not tensor.requires_grad:
            return None
        if is_parameter(tensor):
            leaf: Any = tensor
            return Origin((leaf,))
        return self._find_out(tensor)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name == "__get__":
            name = func.__self__.__name__
            if name not in TENSOR_ATTRIBUTES:
                return func(*args, **kwargs)
        elif name in PLAIN:
            return func(*args, **kwargs)
        elif name in COMPOSITES:
            with self:
                return COMPOSITES[name](self, func, *args, **kwargs)
        elif name in _BACKWARD:
            # A checkpoint that runs again goes backward by itself, and that is part of the backward pass.
            return func(*args, **kwargs) if self._again else self._go_backward(func, args, kwargs)
        elif "." in name or hasattr(func, "overloads"):
            name = _operator_name(func)
        marks, samples, made = self._look_at(args, kwargs)
        if samples and made and name in _CONVERSIONS:
            samples = type(marks.get(id(args[0]))) is not Origin  # the other argument says what kind, and no more
            made = not samples
        if samples and made:
            return self._meet(Call(name, func, args, kwargs, marks, checked=self.checked))
        out = func(*args, **kwargs)
        if marks and (isinstance(out, (Tensor, tuple, list)) or name == "__setitem__"):
            call = Call(name, func, args, kwargs, marks)
            self._mark_results(call, args[0] if name == "__setitem__" else out) if samples else self._mark_made(
                call, out
            )
        return out

    def _look_at(self, args: tuple, kwargs: dict) -> tuple[dict[int, Mark], bool, bool]:
        marks, samples, made = {}, False, False
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            if tensor.requires_grad and (node := tensor.grad_fn) is not None and _compat.is_custom(node):
                self.notice(tensor)
            mark = self.mark_of(tensor)
            if mark is not None:
                marks[id(tensor)] = mark
                if type(mark) is Origin:
                    made = True
                else:
                    samples = True
        return marks, samples, made

    def notice(self, tensor: Tensor) -> None:
        """Look for what a mode cannot see: the nodes of custom functions, reentrant checkpoints among them."""
        node = tensor.grad_fn
        if node is None or not _compat.is_custom(node) or supplies(node) or node in self._noticed:
            return
        self._noticed.add(node)
        if type(node).__name__ == "CheckpointFunctionBackward":
            saved: Any = node
            inputs = [(each, self.mark_of(each)) for each in saved.saved_tensors]
            node.register_prehook(functools.partial(self._reenter, inputs))
            node.register_hook(self._exit)
        else:
            self._meet_custom(node, tensor)

    def finish(self, output: Any) -> None:
        """Look at what the model returned, and let go of what only a forward pass needs."""
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                self.notice(tensor)
                mark = self.mark_of(tensor)
                if type(mark) is Origin and mark.leaves and not is_parameter(tensor):
                    why = f"the model returned a tensor made of {self._names(mark.leaves)} alone, and the loss uses it"
                    self._refuse(tensor, f"{why}: which sample it belongs to cannot be told.")
        self._made.clear()

    def _find_out(self, tensor: Tensor) -> Mark:
        """Judge a tensor that wants a gradient and that no operation seen so far has made."""
        node: Any = tensor.grad_fn
        if node is None:
            mark: Mark = Origin(())  # a leaf that is no parameter: not measured
        elif _compat.made_before(node, self._start):
            mark = Origin(leaves_behind(node))  # older than the batch: a cached weight, say
        else:
            mark = Mixed(
                self._places.size,
                f"an operation that PerSampleNorms cannot see made a tensor of shape {tuple(tensor.shape)} "
                f"({type(node).__name__}): TorchScript, or a custom function that leaves torch",
            )
        self.mark(tensor, mark)
        return mark

    def _go_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Let the model take gradients inside its forward pass; they are not those of the losses."""
        self._inner += 1
        try:
            out = func(*args, **kwargs)
        finally:
            self._inner -= 1
        for tensor in tensors_in(out):
            if tensor.requires_grad:
                self.mark(tensor, Mixed(self._places.size, "the forward pass takes gradients of gradients"))
        return out

    def _reenter(self, inputs: list[tuple[Tensor, Mark | None]], grads: Any) -> None:
        """Watch the forward pass that a checkpoint runs again inside the backward pass."""
        for tensor, mark in inputs:
            if mark is not None:
                self.mark(tensor, mark)
        self._again = True
        self.__enter__()

    def _exit(self, grads: Any, more: Any) -> None:
        self.__exit__(None, None, None)
        self._again = False
        self._made.clear()

    def _mark_results(self, call: Call, out: Any) -> None:
        """Say where the samples are in the results of an operation on the batch."""
        if isinstance(out, Tensor):
            quick = same_shape(call, out) or self._places.recall(call, out)
            if quick is not None:
                self._marks[id(out)] = (weakref.ref(out), quick)
                return
        shape, mark, why = None, None, None
        for number, result in enumerate(tensors_in(out)):
            if result.shape != shape or call.name not in _PIECES:  # pieces of one size hold the samples alike
                shape = result.shape
                mark, why = self._places.find(call, number, result)
                if result is out and type(mark) is Batch and why is None:
                    self._places.remember(call, result, mark)
            if mark is None:
                self._marks.pop(id(result), None)
                continue
            self.mark(result, mark)
            if why is not None and result.requires_grad and not call.leaves():
                self._refuse(result, why)
            if is_in_place(call.name) and (base := _compat.base_of(result)) is not None:
                self._carry_over(call.marks.get(id(result)), result, base, mark)

    def _carry_over(self, before: Mark | None, view: Tensor, base: Tensor, mark: Mark) -> None:
        """Note for the base of a view what an operation in place has put into the view."""
        if type(before) is Batch and type(mark) is Batch and before.agrees(mark):
            return
        known = self._marks.get(id(base))
        if type(mark) is not Batch and known is not None and known[0]() is base:
            self.mark(base, mark)
        written = self._written.get(id(base))
        if written is None or written.base() is not base:
            written = self._written[id(base)] = Written(base)
        written.add(view, mark)

    def _mark_made(self, call: Call, out: Any) -> None:
        """Remember that a tensor was made of parameters alone."""
        leaves = call.leaves()
        source: Any = call.args[0] if call.args else None
        recording = torch.is_grad_enabled()
        for result in tensors_in(out):
            if is_parameter(result) or (recording and not result.requires_grad and not self._again):
                continue
            order = _order(source, result) if call.name in _TRANSPOSES and is_parameter(source) else ()
            expanded = _expanded(call, result)
            detached = self._again and call.name == "detach"  # a checkpoint's argument: its graph is the argument's
            graph = call.marks[id(source)].graph if id(source) in call.marks and not detached else source
            mark = Origin(
                leaves,
                source if order else None,
                order,
                expanded,
                graph if detached else None,
                _rows(call, result),
                _tiled(call, result),
            )
            self.mark(result, mark)
            if result.grad_fn is not None:
                self._made[result.grad_fn] = mark

    def _meet(self, call: Call) -> Any:
        """Run an operation in which parameters meet the batch, with its rule attached."""
        leaves = call.leaves()
        if not self._again:  # a checkpoint's second run uses nothing that its first has not
            self.record.count(leaves)
            if self._guard is not None:
                self._guard.watch(leaves, call.name)
        recording = torch.is_grad_enabled() and bool(leaves)
        uses = self._uses_of(call) if recording else []
        forming = [use for use in uses if use.forms]
        out = self._run(call, forming) if forming else call.func(*call.args, **call.kwargs)
        out = call.args[0] if call.name == "__setitem__" else out
        self._mark_results(call, out)
        if recording and any(tensor.requires_grad for tensor in tensors_in(out)):
            node = out.grad_fn if isinstance(out, Tensor) else None
            if node is not None and _compat.is_custom(node) and not supplies(node):
                self._noticed.add(node)
            call.out = self.mark_of(out) if isinstance(out, Tensor) else None
            self._attach(call, [use for use in uses if not use.forms], out)
        return None if call.name == "__setitem__" else out

    def _uses_of(self, call: Call) -> list[Use]:
        """Return the uses of parameters in one operation, by its rule or by replaying it."""
        if any(type(mark) is Mixed for mark in call.marks.values()):
            return []
        rule = operation_of(call.name).rule
        uses = rule(call, *call.args, **call.kwargs) if rule is not None else None
        if uses is None:
            uses = _replay.uses(call)
        kept = [use for use in uses if call.parametric(use.tensor) or use.origin is not None or trains(use.tensor)]
        for use in kept:
            use.origin = use.origin or call.origin(use.tensor)
        return kept

    def _meet_custom(self, node: Any, out: Tensor) -> None:
        """Attach the node's own backward to the result of a custom function that has parameters among its inputs."""
        mark = self.mark_of(out)
        if type(mark) is Origin:
            return
        targets: list[tuple[int, Any, Origin]] = []
        for place, (child, number) in enumerate(node.next_functions):
            leaf: Any = getattr(child, "variable", None)
            if trains(leaf):
                targets.append((place, leaf, Origin((leaf,))))
            elif child in self._made:
                edge = torch.autograd.graph.GradientEdge(child, number)
                targets.append((place, None, Origin(self._made[child].leaves, graph=edge)))
        if targets:
            call = Call(
                type(node).__name__.removesuffix("Backward"), node, (), {}, {place: o for place, _, o in targets}
            )
            call.out = mark
            self.record.count(call.leaves())
            if self._guard is not None:
                self._guard.watch(call.leaves(), call.name)
            uses = [
                _replay.custom_use(call, weakref.ref(node), place, leaf, None if leaf is not None else origin)
                for place, leaf, origin in targets
            ]
            self._attach(call, uses, out, custom=True)

    def _run(self, call: Call, forming: list[Use]) -> Any:
        """Run the operation with the parameters detached whose gradients will be supplied, so that autograd skips them.

        A convolution's bias has to go with its weight: autograd computes both to get one.
        """
        self._operations += 1
        supply = functools.partial(self._supply, forming, self._operations)
        if forming[0].run is not None:
            return forming[0].run(supply)
        swap = {id(use.tensor): use.tensor.detach() for use in forming}
        args = [swap.get(id(arg), arg) for arg in call.args]
        kwargs = {key: swap.get(id(arg), arg) for key, arg in call.kwargs.items()}
        saved = [tensor for use in forming for tensor in use.saved]
        return supply_gradients(call.func(*args, **kwargs), supply, saved, [use.tensor for use in forming])

    def _attach(self, call: Call, uses: list[Use], out: Any, *, custom: bool = False) -> None:
        if type(call.out) is not Batch:
            why = f": {call.out.why}" if type(call.out) is Mixed else ""
            for result in tensors_in(out):
                text = f"`{call.name}` uses {self._names(call.leaves())} where the samples cannot be told apart{why}"
                self._refuse(result, f"{text}.")
        elif uses:
            node, pick = node_of(call, out, custom=custom)
            self._operations += 1
            # Before the node runs, and so after whatever hooks the user puts on the result.
            node.register_prehook(functools.partial(self._observe, uses, self._operations, pick, custom))

    def _refuse(self, result: Tensor, why: str) -> None:
        """Let `take` fail if a gradient ever reaches this tensor."""
        if result.grad_fn is not None:
            result.grad_fn.register_prehook(functools.partial(_reject, self.record, why))

    def _observe(self, uses: list[Use], operation: int, pick: Pick, custom: bool, grads: Grads) -> None:
        grad = None if self._inner else pick(grads)
        if grad is None or not self.record.begin(operation):
            return
        if torch.is_grad_enabled() or _compat.autocasting():  # create_graph=True, or a backward pass inside autocast
            # The backward of a custom function finds autocast as autograd leaves it.
            with torch.no_grad(), contextlib.nullcontext() if custom else without_autocast():
                self.record.observe(uses, grad)
        else:
            self.record.observe(uses, grad)
        uses.clear()  # autograd lets go of what it saved at this point; so do the rules

    def _supply(self, uses: list[Use], operation: int, grad: Tensor, saved: Sequence[Tensor]) -> list[Tensor]:
        counted = not self._inner and self.record.begin(operation)
        with without_autocast() if _compat.autocasting() else contextlib.nullcontext():
            supplied, start = [], 0
            for use in uses:
                mine = saved[start : start + len(use.saved)]
                start += len(mine)
                supplied += self.record.supply(use, grad, mine) if counted else totals(use, use.part(grad, *mine))
        return supplied


_BACKWARD = {"grad", "backward"}


def _reject(record: TracedPass, why: str, grads: Grads) -> None:
    if any(grad is not None for grad in grads):
        record.reject(why)


def _operator_name(func: Any) -> str:
    """Return the name of an operator from `torch.ops`; with its namespace, unless it is one of torch's own."""
    space, name, *_ = f"{func}.".split(".")
    return name if space == "aten" else f"{space}.{name}"


def _order(source: Tensor, result: Tensor) -> tuple[int, ...]:
    """Return where each dimension of `source` is in its transpose, () if it is no other order, or cannot be told."""
    strides = source.stride()
    if len(set(strides)) < len(strides) or result.stride() == strides or sorted(strides) != sorted(result.stride()):
        return ()
    return tuple(result.stride().index(stride) for stride in strides)


def _rows(call: Call, result: Tensor) -> tuple[Any, Tensor] | None:
    """Return the table and the index, if the result is a plain look-up in a parameter."""
    if call.name != "embedding" or len(call.args) < 2 or not is_parameter(call.args[1]):
        return None
    padded = call.argument(2, "padding_idx") not in (None, -1)
    changed = call.argument(3, "max_norm") is not None or call.argument(5, "scale_grad_by_freq", False)
    return (call.args[1], call.args[0]) if result.requires_grad and not padded and not changed else None


def _tiled(call: Call, result: Tensor) -> Tensor | None:
    """Return the tensor of which the result holds copies along its first dimension: before or after a transpose."""
    source: Any = call.args[0] if call.args else None
    if call.name == "repeat":
        base = source
    elif call.name in _TRANSPOSES and (origin := call.origin(source)) is not None and origin.tiled_from is not None:
        base = call.func(origin.tiled_from, *call.args[1:], **call.kwargs)
    else:
        return None
    same = base.dim() == result.dim() > 1 and base.shape[1:] == result.shape[1:]
    return base if same and 1 < base.shape[0] < result.shape[0] else None


def _expanded(call: Call, result: Tensor) -> Any:
    """Return the tensor whose entries the result repeats, None if it does not; constants may have been added to them."""
    if call.name in _EXPANSIONS:
        source: Any = call.args[0]
    elif call.name in _SUMS and not call.kwargs:
        made = [arg for arg in call.args if call.parametric(arg)]  # twice, if it is added to itself
        source = made[0] if len(made) == 1 else None
    else:
        source = None
    return source if isinstance(source, Tensor) and _broadcasts(source, result) else None


def _broadcasts(source: Tensor, result: Tensor) -> bool:
    """Tell whether `result` only repeats `source` along dimensions of size one."""
    pairs = zip(reversed(source.shape), reversed(result.shape), strict=False)
    return source.dtype == result.dtype and all(size in (1, full) for size, full in pairs)
