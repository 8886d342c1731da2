"""Traces the operations of one forward pass and attaches a rule to each that uses a parameter.

Nothing is left on modules or parameters: rules hang on the graph of this forward pass and go with it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from adamcb.gradnorm import _compat, _custom, _replay
from adamcb.gradnorm._arrivals import Arrivals
from adamcb.gradnorm._batch import Batch, Mixed
from adamcb.gradnorm._call import (
    Call,
    Mark,
    Operation,
    Origin,
    Use,
    is_in_place,
    is_parameter,
    operator_name,
    tensors_in,
    trains,
)
from adamcb.gradnorm._graph import leaves_behind, supplies
from adamcb.gradnorm._guard import Guard
from adamcb.gradnorm._marks import Marks, changes
from adamcb.gradnorm._origins import origin_of
from adamcb.gradnorm._packed import packs_in, rows_of
from adamcb.gradnorm._places import Places, Written, alike, same_shape
from adamcb.gradnorm._record import TracedPass
from adamcb.gradnorm._table import BACKWARD, PLAIN, TENSOR_ATTRIBUTES, operation_of


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
        self._marks = Marks()
        self._written: dict[int, Written] = {}
        self._made: dict[Any, Origin] = {}
        self._noticed: weakref.WeakSet = weakref.WeakSet()
        self._arrivals = Arrivals(record, names)
        self._again = False
        self._packed = False  # whether autograd's saved tensors went through hooks, as in a checkpoint
        self._start = _compat.now()

    @property
    def checked(self) -> bool:
        """Whether autograd must compute all gradients itself, so that parts can be compared with them."""
        return self._guard is not None

    def mark_inputs(self, inputs: Any, samples: Tensor | None = None) -> None:
        """Note where the inputs hold the samples: along their first dimension."""
        for tensor, mark in self._places.of_inputs(inputs, samples):
            self.mark(tensor, mark)

    def mark(self, tensor: Tensor, mark: Mark) -> None:
        """Note what is known of a tensor, for as long as it lives."""
        self._marks.put(tensor, mark)

    def mark_samples(self, tensor: Tensor, batch: Batch) -> Batch:
        """Note where an operation's convention puts the samples; return where they are.

        The convention only says which dimension: whose each entry is, is known if the samples were followed so far.
        What is made of parameters alone holds none.
        """
        known = self.mark_of(tensor)
        if type(known) is Batch and known.size == 1:
            known = known._replace(dim=batch.dim, owners=None)
        if type(known) is Batch:
            if known.dim == batch.dim:
                self.mark(tensor, known)
                return known
            self._distrust(
                f"a layer takes dimension {batch.dim} of a tensor of shape {tuple(tensor.shape)} for the batch, but by "
                f"the model's inputs, which have the batch first, it is dimension {known.dim}. Give the model inputs "
                "whose first dimension is the batch, and see whether the layer needs `batch_first=True`."
            )
        elif known is None and self._places.size not in (0, batch.size):
            self._distrust(
                f"a layer takes dimension {batch.dim} of a tensor of shape {tuple(tensor.shape)} for the batch, but "
                f"the model's inputs hold {self._places.size} samples, and no samples are known in that tensor."
            )
        old = tensor.grad_fn is None or _compat.made_before(tensor.grad_fn, self._start)
        if type(known) is not Origin and (type(known) is not Mixed or old):
            self.mark(tensor, batch)
        return batch

    def _distrust(self, why: str) -> None:
        """Let `take` fail whatever gradients arrive."""
        self.record.error = self.record.error or why

    def mark_of(self, tensor: Tensor) -> Mark | None:
        """Return what is known of a tensor, None for a constant."""
        mark = self._marks.get(tensor)
        if mark is not None:
            constant = not tensor.requires_grad and torch.is_grad_enabled()
            quiet = constant and type(mark) is Mixed and mark.silent
            return mark.place if quiet else None if constant and type(mark) is Origin else mark  # type: ignore[union-attr]
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
        elif name in BACKWARD:
            # A checkpoint that runs again goes backward by itself, and that is part of the backward pass.
            return func(*args, **kwargs) if self._again else self._go_backward(func, args, kwargs)
        elif "." in name or hasattr(func, "overloads"):
            name = operator_name(func)
        operation = operation_of(name)
        if operation.composite is not None:
            if operation.recurrent and _compat.packs_saved_tensors():
                return self._leave_whole(func, args, kwargs)
            with self:
                return operation.composite(self, func, *args, **kwargs)
        return self._follow(name, operation, func, args, kwargs)

    def _follow(self, name: str, operation: Operation, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operation, and note what is known of its results."""
        if changes(name, operation, kwargs):
            func = functools.partial(self._marks.run, func)
        if self._guard is not None and _compat.autocasting():
            self._guard.allow_rounding()
        marks, samples, made = self._look_at(args, kwargs)
        if samples and made and operation.converts:
            samples = type(marks.get(id(args[0]))) is not Origin  # the other argument says what kind, and no more
            made = not samples
        if samples and made:
            return self._meet(Call(name, func, args, kwargs, marks, operation, checked=self.checked))
        out = func(*args, **kwargs)
        if marks and (isinstance(out, (Tensor, tuple, list)) or operation.assigns):
            call = Call(name, func, args, kwargs, marks, operation)
            self._mark_results(call, args[0] if operation.assigns else out) if samples else self._mark_made(call, out)
        return out

    def _leave_whole(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run a recurrent layer as it is: a checkpoint runs it again without us, and expects the same operations."""
        why = "a recurrent layer inside a checkpoint cannot be measured, unless that has use_reentrant=True"
        out = func(*args, **kwargs)
        for result in tensors_in(out):
            self.mark(result, Mixed(self._places.size, why))
            self._arrivals.refuse(result, f"{why}.")
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
        if self._guard is not None and not _custom.repeats(node):
            self._guard.give_up_weighing()  # nobody knows what it does when it goes backward again
        if type(node).__name__ == "CheckpointFunctionBackward":
            if (
                type(mark := self._marks.get(tensor)) is Mixed and mark.silent
            ):  # all of it is followed when it runs again
                self._marks.drop(tensor) if mark.place is None else self.mark(tensor, mark.place)
            saved: Any = node
            inputs = [(each, self.mark_of(each)) for each in saved.saved_tensors]
            node.register_prehook(functools.partial(self._reenter, inputs))
            node.register_hook(self._exit)
        else:
            self._meet_custom(node, tensor)

    def finish(self, output: Any) -> None:
        """Look at what the model returned, and let go of what only a forward pass needs."""
        results = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        packs = {id(pack.data): pack for pack in packs_in(output)}
        for tensor in results:
            self.notice(tensor)
            mark = self.mark_of(tensor)
            if type(mark) is Origin and mark.leaves and not is_parameter(tensor):
                why = f"the model returned a tensor made of {self._names(mark.leaves)} alone, and the loss uses it"
                self._arrivals.refuse(tensor, f"{why}: which sample it belongs to cannot be told.")
            elif type(mark) is Mixed and not mark.pooled:  # in place, or by a function that no operation told of
                self._arrivals.refuse(tensor, f"the model returned a tensor in which samples are mixed: {mark.why}.")
            elif type(mark) is Batch and (pack := packs.get(id(tensor))) is not None and mark.agrees(rows_of(pack)):
                continue  # it says itself in which order its rows are
            elif type(mark) is Batch and (order := self._places.reordered(mark, tensor.shape[mark.dim])):
                self._arrivals.refuse(
                    tensor,
                    f"dimension {mark.dim} of a result of the model holds the samples in another order than the "
                    f"inputs: {order}. Which loss is whose cannot be told; return them in the order of the inputs.",
                )
        self._made.clear()
        if self._guard is not None:
            self._guard.expect([(tensor, self.mark_of(tensor)) for tensor in results], self._arrivals.quiet)

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
        with self._arrivals.quiet():
            out = func(*args, **kwargs)
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
        if self._guard is not None and call.operation.ties is not None and call.operation.ties(call):
            self._guard.give_up_weighing()
        if isinstance(out, Tensor):
            quick = same_shape(call, out) or self._places.recall(call, out)
            if quick is not None:
                self._marks.put(out, quick)
                return
        shape, mark, why = None, None, None
        for number, result in enumerate(tensors_in(out)):
            if result.shape != shape or not alike(call, mark, result):
                shape = result.shape
                mark, why = self._places.find(call, number, result)
                if result is out and type(mark) is Batch and why is None:
                    self._places.remember(call, result, mark)
            if mark is None:
                self._marks.drop(result)
                continue
            self.mark(result, mark)
            if why is not None and result.requires_grad and not call.leaves():
                self._arrivals.refuse(result, why)
            if is_in_place(call.name) and (base := _compat.base_of(result)) is not None:
                self._carry_over(call.marks.get(id(result)), result, base, mark)

    def _carry_over(self, before: Mark | None, view: Tensor, base: Tensor, mark: Mark) -> None:
        """Note for the base of a view what an operation in place has put into the view."""
        if type(before) is Batch and type(mark) is Batch and before.agrees(mark):
            return
        if type(mark) is not Batch and self._marks.get(base) is not None:
            self.mark(base, mark)
        written = self._written.get(id(base))
        if written is None or written.base() is not base:
            written = self._written[id(base)] = Written(base)
        written.add(view, mark)

    def _mark_made(self, call: Call, out: Any) -> None:
        """Remember that a tensor was made of parameters alone."""
        recording = torch.is_grad_enabled()
        for result in tensors_in(out):
            if is_parameter(result) or (recording and not result.requires_grad and not self._again):
                continue
            mark = origin_of(call, result, again=self._again)
            self.mark(result, mark)
            if result.grad_fn is not None:
                self._made[result.grad_fn] = mark

    def _meet(self, call: Call) -> Any:
        """Run an operation in which parameters meet the batch, with its rule attached."""
        leaves = call.leaves()
        if not self._again:  # a checkpoint's second run uses nothing that its first has not
            self.record.count(call.occurrences())
            packed = _compat.packs_saved_tensors()
            self._packed = self._packed or packed
            if self._guard is not None:
                self._guard.watch(leaves, call.name)
                if packed:
                    self._guard.give_up_weighing()
        recording = torch.is_grad_enabled() and bool(leaves)
        uses = self._uses_of(call) if recording else []
        forming = [use for use in uses if use.forms]
        out = self._arrivals.run(call, forming) if forming else call.func(*call.args, **call.kwargs)
        out = call.args[0] if call.operation.assigns else out
        self._mark_results(call, out)
        if recording and any(tensor.requires_grad for tensor in tensors_in(out)):
            node = out.grad_fn if isinstance(out, Tensor) else None
            if node is not None and _compat.is_custom(node) and not supplies(node):
                self._noticed.add(node)
            call.out = self.mark_of(out) if isinstance(out, Tensor) else None
            self._arrivals.attach(call, [use for use in uses if not use.forms], out)
        if forming and len(forming) == len(uses):
            call.args, call.kwargs = (), {}  # the rules hold the call; what they read of it, autograd keeps and frees
        return None if call.operation.assigns else out

    def _uses_of(self, call: Call) -> list[Use]:
        """Return the uses of parameters in one operation, by its rule or by replaying it."""
        if any(type(mark) is Mixed for mark in call.marks.values()):
            return []
        rule = call.operation.rule
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
        if type(mark) is Mixed and mark.silent:
            mark = self._judge_custom(node, out, mark)
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
            self.record.count([leaf for _, _, origin in targets for leaf in origin.leaves])
            if self._guard is not None:
                self._guard.watch(call.leaves(), call.name)
            if (why := _custom.why_not(node, packed=self._packed)) is not None:
                self._arrivals.refuse(out, f"`{call.name}`, a custom autograd function of parameters, {why}.")
                return
            uses = [
                _replay.custom_use(call, weakref.ref(node), place, leaf, None if leaf is not None else origin)
                for place, leaf, origin in targets
            ]
            self._arrivals.attach(call, uses, out, custom=True)

    def _judge_custom(self, node: Any, out: Tensor, mark: Mixed) -> Mark:
        """Let the backward pass of a custom function show whether it keeps the samples apart that its forward mixed."""
        if (place := mark.place) is None or _custom.why_not(node, packed=self._packed) is not None:
            self._arrivals.refuse(out, f"{mark.why}.")
            judged: Mark = mark._replace(silent=False)
        else:
            reject = functools.partial(self._arrivals.reject, f"{mark.why}, nor does its backward pass.")
            _custom.watch(node, place, self._made, reject)
            judged = place
        self.mark(out, judged)
        return judged
