"""`PerSampleNorms`: the norm of each sample's gradient, from the backward pass that training does anyway."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adamcb import _checks
from adamcb._warn import warn_user
from adamcb.gradnorm import _compat
from adamcb.gradnorm._watch import Watcher, abandon_interrupted, watched_parts


class PerSampleNorms:
    """Gives the norm of what each sample added to the gradient, after an ordinary `backward()`.

    With a loss Σⱼ weightⱼ·lossⱼ, summed over the samples, it is weightⱼ·‖∇lossⱼ‖ over all trainable parameters that the
    model's forward uses; whoever weighted the losses divides by the weights. `param.grad` is what it would be without
    the engine. Where samples depend on each other (BatchNorm in training), a sample's gradient is its contribution to
    the gradient of the batch.

    The samples lie along the first dimension of the model's inputs; inside, they may be moved. Operations with
    parameters outside the model's forward are not seen. In evaluation mode it works the same; under `no_grad` it costs
    nothing. Copies and pickles of the model do not carry it. The model does not keep it alive: once nobody holds it, it
    comes off the model.

    Args:
        model: The model whose gradients are measured. One engine at a time.
        mode: "exact" for all parameters; "last-layer" for ‖∂lossⱼ/∂zⱼ‖, z the result of the last operation with
            parameters: the bound of Katharopoulos and Fleuret (2018) up to a constant, at almost no cost.
        check: When exact norms are compared with autograd's gradients: "auto" in the first passes, at new shapes and
            now and then, for less than one percent of the time; "always"; or "never". `take` raises on a difference.
        samples: For inputs whose rows are not samples (graphs, packed tokens): a function of the model's inputs that
            returns int64[n], the sample of each row.

    Raises:
        NotImplementedError: If modules cannot be measured; their paths are listed.
        RuntimeError: If the model, or a part of it, is being measured already.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 1)
        >>> weights = torch.tensor([0.5, 2.0])
        >>> with PerSampleNorms(model) as norms:
        ...     losses = model(torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])).squeeze(1)
        ...     (weights * losses).sum().backward()
        ...     norms.take() / weights
        tensor([3.1623, 1.0000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: str = "exact",
        check: str = "auto",
        samples: Callable[..., Tensor] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a torch.nn.Module, got model of type {type(model).__name__}.")
        exact = _checks.one_of("mode", mode, ("exact", "last-layer")) == "exact"
        _checks.one_of("check", check, ("auto", "always", "never"))
        if samples is not None:
            _checks.function("samples", samples)
        abandon_interrupted()
        _refuse_second_engine(model)
        if exact:
            _refuse_unmeasurable(model)
        _warn_of_compilation(model, exact)
        self._watcher = Watcher(model, exact=exact, check=check, samples=samples)
        self._done = self._watcher.done
        self._detach = weakref.finalize(self, self._watcher.retire)
        self._detach.atexit = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("PerSampleNorms must not be copied or pickled: it is attached to its model.")

    def __enter__(self) -> PerSampleNorms:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the engine off the model, which is then as it was. May be called twice."""
        self.clear()
        self._detach()

    @property
    def passes(self) -> int:
        """How many forward passes of the model were followed so far. The last of them has this number."""
        return self._watcher.passes

    @property
    def is_paused(self) -> bool:
        """Whether forward passes go by unmeasured, at no cost; may be set between forward passes."""
        return self._watcher.is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        self._watcher.is_paused = value

    def is_done(self, until: int, *, first: int = 1) -> bool:
        """Tell whether a forward pass with a number from `first` to `until` has gone backward and waits for `take`."""
        first, until = _checks.integer("first", first), _checks.integer("until", until)
        return any(first <= record.index <= until for record in self._done)

    def compare(self, losses: Tensor, *, first: int = 1) -> None:
        """Let the losses show whose the rows of the last layers are, before they go backward.

        Last-layer norms take the first dimension of the model's results for the batch. Numbers that go backward from
        some of the losses alone reach the rows of their samples: in the first passes, at new shapes and now and then,
        as `check` says. Where they disagree with that, the losses are right. Exact norms follow the samples and need
        no losses.

        Args:
            losses: float[K], one for each sample, in the order of the batch.
            first: The number of the first forward pass that they were made of. Those that went backward do not count.
        """
        _checks.instance("losses", losses, Tensor, "a tensor")
        if losses.dim() != 1:
            raise ValueError(f"`losses` must be one per sample, got {_checks.shown('losses', losses)}.")
        self._watcher.compare(losses, _checks.integer("first", first, low=1))

    def take(self, *, until: int | None = None) -> Tensor:
        """Return the norms of the samples that went backward since the last call, in the order of their forward.

        With gradient accumulation, call it after each backward pass, or once for all.

        Args:
            until: Take the forward passes with a number up to this one, and leave later ones. None: take all.

        Returns:
            float32[K] on the model's device; float64 if the gradients are.

        Raises:
            RuntimeError: If no backward pass has happened, it could not be measured, or the check found a difference.
        """
        done = self._done
        last = self._watcher.passes if until is None else _checks.integer("until", until)
        if len(done) == 1 and done[0].index <= last:
            taken = [done.pop()]
        else:
            taken = sorted((record for record in done if record.index <= last), key=lambda record: record.index)
            done[:] = [record for record in done if record.index > last]
        if not taken:
            raise RuntimeError(
                "`take` must follow a backward pass through the model, and none has happened since the last call. "
                "Call the model itself, with gradients enabled; pass what torch.compile returned if you use it."
            )
        try:
            norms = [record.norms() for record in taken]
            if not done:  # or the check has seen passes that are none of these
                self._watcher.judge()
        finally:
            self._watcher.drop_check()
        return norms[0] if len(norms) == 1 else torch.cat(norms)

    def forget(self) -> None:
        """Forget the samples that went backward since the last `take`. A check that saw them is given up."""
        if self._done:
            self._done.clear()
            self._watcher.drop_check()

    def state_dict(self) -> dict[str, Any]:
        """Return which passes were checked so far, and what else decides how the next ones are followed.

        With `load_state_dict` a resumed run checks the same passes, so that its gradients are the same bits: those of a
        checked pass are autograd's own, others may be summed in another order.
        """
        return self._watcher.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            TypeError, ValueError: If it is not what `state_dict` returned. Nothing is changed then.
        """
        self._watcher.load_state_dict(state)

    def clear(self) -> None:
        """Forget the samples that went backward since the last `take`, and a forward pass that was interrupted."""
        self._done.clear()
        self._watcher.abandon()


def _refuse_second_engine(model: nn.Module) -> None:
    taken = watched_parts(model)
    if taken:
        raise RuntimeError(
            f"An older loader or PerSampleNorms still measures {', '.join(taken)}. Call `close()` of the old loader "
            "(or PerSampleNorms) first; in a notebook, build the model in the same cell."
        )


def _refuse_unmeasurable(model: nn.Module) -> None:
    """Raise for all modules whose parameters no rule and no fallback can follow."""
    reasons = [(path, type(module).__name__, _obstacle(module)) for path, module in model.named_modules()]
    refused = [f"{path or 'the model itself'} ({kind}): {why}" for path, kind, why in reasons if why]
    if refused:
        raise NotImplementedError(
            "Per-sample gradients cannot be told apart in these modules. Freeze their parameters, replace them, or use "
            'mode="last-layer".\n  ' + "\n  ".join(refused)
        )


def _obstacle(module: nn.Module) -> str | None:
    parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in parameters):
        return "its parameters have no shape yet; run one batch first"
    inside = any(parameter.requires_grad for parameter in module.parameters())
    if isinstance(module, torch.jit.ScriptModule) and inside:
        return "TorchScript hides its operations"
    if isinstance(module, nn.DataParallel) and inside:
        return "its replicas run in other threads; use DistributedDataParallel"
    if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss) and inside:
        return "it sorts the samples by their targets"
    return None


def _warn_of_compilation(model: nn.Module, exact: bool) -> None:
    if _compat.is_compiled_in_place(model):
        advice = "compiled in place, the model hides its operations: use torch.compile(model) and pass what it returns."
    elif _compat.is_compiled(model) and exact:
        advice = 'the compiled model runs uncompiled while it is measured; mode="last-layer" keeps it compiled.'
    else:
        return
    warn_user(f"PerSampleNorms: {advice}")
