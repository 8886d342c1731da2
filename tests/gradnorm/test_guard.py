"""The guard: rules that are broken in every way are found out, and sound ones are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamcb.gradnorm import Dense, PerSampleNorms, Use, register_rule
from adamcb.gradnorm._guard import Schedule
from adamcb.gradnorm._table import OPERATIONS
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_uses import numbers
from tests.reference.gradnorm import norms_one_by_one, wave

K = 4


class Network(nn.Module):
    """Every kind of part: a convolution, a table, a norm layer, dense layers, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.table, self.norm = nn.Conv1d(3, 3, 3, padding=1), nn.Embedding(5, 6), nn.LayerNorm(6)
        self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.convolution(inputs)) + self.table((inputs[:, :, 0].abs() * 7).long() % 5)
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(self.norm(hidden))))))


def backward(model: nn.Module, inputs: Tensor) -> None:
    wave(model(inputs), torch.arange(len(inputs))).sum().backward()


def double(uses: list) -> list:
    return uses + uses


def drop(uses: list) -> list:
    return uses[:-1] if len(uses) > 1 else []


def swap(uses: list) -> list:
    """Give two samples each other's gradient of the result."""
    return _changed(uses, lambda grad: grad[[1, 0, *range(2, len(grad))]])


def scale(uses: list) -> list:
    return _changed(uses, lambda grad: torch.cat([1.1 * grad[:1], grad[1:]]))


def _changed(uses: list, change: Callable[[Tensor], Tensor]) -> list:
    for use in uses:
        use.part = lambda grad, *saved, part=use.part: part(change(grad), *saved)
    return uses


BREAKS = {"double": double, "drop": drop, "swap": swap, "scale": scale}
RULES = {"conv1d": "convolution", "embedding": "table", "layer_norm": "norm", "linear": "head"}


@pytest.mark.parametrize("operation", RULES)
@pytest.mark.parametrize("name", BREAKS)
def test_broken_rule_is_found_out(name, operation, monkeypatch):
    sound: Any = OPERATIONS[operation].rule

    def broken(call: Any, *args: Any, **kwargs: Any) -> Any:
        uses = sound(call, *args, **kwargs)
        # A bias that rides along with its weight is a use of its own for `drop`.
        if name == "drop" and uses[0].bias is not None:
            uses[0].bias = None
            return uses
        return BREAKS[name](uses)

    model = randomize(Network().double())
    monkeypatch.setitem(OPERATIONS, operation, OPERATIONS[operation]._replace(rule=broken))
    with PerSampleNorms(model) as norms:
        backward(model, numbers(K, 3, 6))
        with pytest.raises(RuntimeError, match=f"not what autograd computed.*`{RULES[operation]}"):
            norms.take()


def exchange(uses: list) -> list:
    """Give two samples each other's part, both factors of it: the sum over the samples stays the same."""
    for use in uses:
        use.part = lambda grad, *saved, part=use.part: Exchanged(part(grad, *saved))
    return uses


class Exchanged(Dense):
    """The K gradients of a part, those of two samples exchanged."""

    def __init__(self, part: Any) -> None:
        gradients = part.dense()
        super().__init__(gradients[[1, 0, *range(2, len(gradients))]])


def exchanging(operation: str) -> Any:
    sound: Any = OPERATIONS[operation].rule

    def broken(call: Any, *args: Any, **kwargs: Any) -> Any:
        uses = sound(call, *args, **kwargs)
        uses[0].bias = None  # `drop` has seen to the bias
        return exchange(uses[:1]) + [_bias(call, args[2]) for _ in uses[:1] if operation == "linear"] + uses[1:]

    return OPERATIONS[operation]._replace(rule=broken)


def _bias(call: Any, bias: Any) -> Use:
    return Use(bias, lambda grad: Dense(call.rows(grad).sum(1)))


@pytest.mark.parametrize("operation", RULES)
def test_exchanged_samples_are_found_out(operation, monkeypatch):
    model = randomize(Network().double())
    monkeypatch.setitem(OPERATIONS, operation, exchanging(operation))
    with PerSampleNorms(model) as norms:
        backward(model, numbers(K, 3, 6))
        with pytest.raises(RuntimeError, match="its parts belong to other samples than they are taken for"):
            norms.take()


def test_exchanged_samples_are_found_out_in_one_of_several_passes(monkeypatch):
    model, inputs = randomize(Network().double()), numbers(K, 3, 6)
    with PerSampleNorms(model) as norms:
        first = wave(model(inputs), torch.arange(K)).sum()
        monkeypatch.setitem(OPERATIONS, "embedding", exchanging("embedding"))
        (first + wave(model(0.5 * inputs), torch.arange(K)).sum()).backward()
        with pytest.raises(RuntimeError, match="`table.weight`.*belong to other samples"):
            norms.take()


class Several(Network):
    """Returns what it makes of the batch at several points, one of them twice, and a mean that no loss uses."""

    def forward(self, inputs: Tensor) -> Any:
        hidden = torch.tanh(self.convolution(inputs)) + self.table((inputs[:, :, 0].abs() * 7).long() % 5)
        again = self.twice(torch.tanh(self.twice(self.norm(hidden))))
        first, second = again.chunk(2, -1)
        result = self.head(torch.tanh(again))
        return {"results": [result, result, first, second, hidden], "again": again, "mean": result.mean()}


LOSSES = {
    "last": lambda out: wave(out["results"][0], torch.arange(K)).sum(),
    "one of the pieces": lambda out: wave(out["results"][3], torch.arange(K)).sum(),
    "middle and last": lambda out: sum(wave(out["results"][i], torch.arange(K)).sum() for i in (0, 4)),
    "all": lambda out: sum(wave(each, torch.arange(K)).sum() for each in (*out["results"], out["again"])),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_exchanged_samples_are_found_out_in_several_results(loss, monkeypatch):
    model, plain, inputs = *(randomize(Several().double()) for _ in range(2)), numbers(K, 3, 6)
    loss(plain(inputs)).backward()
    with PerSampleNorms(model, check="always") as norms:
        loss(model(inputs)).backward()
        norms.take()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert mine.grad is theirs.grad is None or torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
        monkeypatch.setitem(OPERATIONS, "embedding", exchanging("embedding"))
        loss(model(inputs)).backward()
        with pytest.raises(RuntimeError, match="`table.weight`.*belong to other samples"):
            norms.take()


def test_mean_beside_the_results_accuses_nobody():
    model, inputs = randomize(Several().double()), numbers(K, 3, 6)
    with PerSampleNorms(model, check="always") as norms:
        out = model(inputs)
        (LOSSES["all"](out) + out["mean"]).backward()
        norms.take()


def test_weighing_leaves_gradients_and_random_numbers_alone():
    model, plain, inputs = *(randomize(Network().double()) for _ in range(2)), numbers(K, 3, 6)
    with PerSampleNorms(model) as norms:
        for _ in range(2):
            torch.manual_seed(3)
            wave(nn.functional.dropout(model(inputs)), torch.arange(K)).sum().backward()
            after = torch.rand(())
            norms.take()
            torch.manual_seed(3)
            wave(nn.functional.dropout(plain(inputs)), torch.arange(K)).sum().backward()
            assert torch.equal(after, torch.rand(()))
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


class Tied(nn.Module):
    """BatchNorm without parameters between dense layers: gradients of one sample flow to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs))))


class Aside(Network):
    """Returns its result, and leaves something aside that the loss uses too."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.aside = self.twice(inputs)
        return super().forward(inputs)


def _clamped(module: nn.Module, args: tuple, out: Tensor) -> None:
    out.register_hook(lambda grad: grad.clamp(-0.1, 0.1))


def test_weighing_accuses_nobody_who_is_sound():
    tied, inputs = randomize(Tied().double()), numbers(K, 6)
    with PerSampleNorms(tied, check="always") as norms:
        backward(tied, inputs)
        norms.take()
    aside, inputs = randomize(Aside().double()), numbers(K, 3, 6)
    with PerSampleNorms(aside, check="always") as norms:
        (wave(aside(inputs), torch.arange(K)).sum() + (aside.aside**2).sum()).backward()
        norms.take()
    network = randomize(Network().double())
    network.norm.register_forward_hook(_clamped)
    with PerSampleNorms(network, check="always") as norms:
        backward(network, inputs)
        norms.take()


def test_broken_shortcut_is_found_out(monkeypatch):
    from adamcb.gradnorm import _compat

    sound = _compat.saved_inputs
    monkeypatch.setattr(_compat, "saved_inputs", lambda *args: sound(*args).roll(1, 0))
    model = randomize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    with PerSampleNorms(model) as norms:
        backward(model, numbers(K, 3))
        with pytest.raises(RuntimeError, match="`2.weight`.*its parts do not sum to its gradient"):
            norms.take()


def test_unchecked_pass_is_not_compared(monkeypatch):
    sound: Any = OPERATIONS["embedding"].rule
    broken = OPERATIONS["embedding"]._replace(rule=lambda *args, **kwargs: double(sound(*args, **kwargs)))
    monkeypatch.setitem(OPERATIONS, "embedding", broken)
    model = randomize(Network().double())
    with PerSampleNorms(model, check="never") as norms:
        backward(model, numbers(K, 3, 6))
        assert len(norms.take()) == K


def test_after_a_difference_every_pass_is_checked_until_one_agrees(monkeypatch):
    sound: Any = OPERATIONS["embedding"].rule
    broken = OPERATIONS["embedding"]._replace(rule=lambda *args, **kwargs: double(sound(*args, **kwargs)))
    model, inputs = randomize(Network().double()), numbers(K, 3, 6)
    with PerSampleNorms(model) as norms:
        with monkeypatch.context() as patch:
            patch.setitem(OPERATIONS, "embedding", broken)
            for _ in range(6):
                backward(model, inputs)
                with pytest.raises(RuntimeError, match="not what autograd computed"):
                    norms.take()
        backward(model, inputs)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, inputs), rtol=1e-10, atol=0.0)


def test_schedule_checks_first_passes_new_shapes_and_now_and_then():
    schedule, checked = Schedule("auto"), []
    for number in range(1, 1301):
        if schedule.wants(("short" if number != 200 else "long",)):
            checked.append(number)
            schedule.report(failed=False)
    assert checked == [1, 2, 3, 200, 700, 1200]


def test_schedule_keeps_checks_rare_when_every_shape_is_new():
    schedule, checks = Schedule("auto"), 0
    for number in range(5000):
        if schedule.wants((number,)):
            checks += 1
            schedule.report(failed=False)
    assert 45 <= checks <= 53


@pytest.mark.parametrize(("check", "answer"), [("always", True), ("never", False)])
def test_schedule_obeys(check, answer):
    assert [Schedule(check).wants((number,)) for number in range(5)] == [answer] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_sound_network_is_never_accused(seed, dtype):
    model = randomize(Network(), seed).to(dtype)
    inputs = torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
    with PerSampleNorms(model, check="always") as norms:
        for _ in range(2):
            backward(model, inputs)  # gradients are accumulated
            norms.take()
        (1e4 * wave(model(inputs), torch.arange(8))).sum().backward()
        (1e-6 * wave(model(inputs), torch.arange(8))).sum().backward()
        norms.take()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_not_accused(dtype):
    model, inputs = randomize(Network()), torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(0))
    with PerSampleNorms(model, check="always") as norms:
        with torch.autocast("cpu", dtype):
            losses = wave(model(inputs).float(), torch.arange(8))
        losses.sum().backward()
        norms.take()


def test_overflow_is_no_difference():
    model, inputs = randomize(Network()), torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(0))
    with PerSampleNorms(model, check="always") as norms:
        (float("inf") * wave(model(inputs), torch.arange(8))).sum().backward()
        assert not norms.take().isfinite().all()


def test_some_parameters_may_be_frozen_and_some_asked_for():
    model, inputs = randomize(Network().double()), numbers(K, 3, 6)
    model.norm.requires_grad_(False)
    model.table.requires_grad_(False)
    with PerSampleNorms(model, check="always") as norms:
        backward(model, inputs)
        torch.testing.assert_close(norms.take(), norms_one_by_one(model, inputs), rtol=1e-10, atol=0.0)
        torch.autograd.grad(wave(model(inputs), torch.arange(K)).sum(), list(model.head.parameters()))
        norms.take()


def test_passes_that_go_backward_together_and_late_are_compared_together():
    model, inputs = randomize(Network().double()), numbers(K, 3, 6)
    with PerSampleNorms(model, check="always") as norms:
        first = wave(model(inputs), torch.arange(K)).sum()
        second = wave(model(0.5 * inputs), torch.arange(K)).sum()
        third = wave(model(0.2 * inputs), torch.arange(K)).sum()
        (first + second).backward()
        assert len(norms.take()) == 2 * K
        backward(model, inputs)
        third.backward()
        assert len(norms.take()) == 2 * K


def test_guard_leaves_nothing_on_parameters():
    model = randomize(Network().double())
    with PerSampleNorms(model, check="always") as norms:
        backward(model, numbers(K, 3, 6))
        norms.take()
        assert all(not parameter._backward_hooks for parameter in model.parameters())
        model(numbers(K, 3, 6))
    assert all(not parameter._backward_hooks for parameter in model.parameters())


def test_registered_rule_is_used_and_checked():
    def hypot(call: Any, input: Tensor, other: Tensor) -> Any:
        used.append(call.name)
        return OPERATIONS["atan2"].rule(call, input, other)  # type: ignore[misc]

    class Hypot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.Parameter(torch.ones(3))

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.hypot(inputs, self.side)

    used: list[str] = []
    before = OPERATIONS["hypot"]
    try:
        register_rule(torch.hypot, hypot)
        model = randomize(Hypot().double())
        with PerSampleNorms(model, check="always") as norms:
            backward(model, numbers(K, 3))
            taken = norms.take()
        assert used == ["hypot"]
        torch.testing.assert_close(taken, norms_one_by_one(model, numbers(K, 3)), rtol=1e-10, atol=0.0)
    finally:
        OPERATIONS["hypot"] = before


@pytest.mark.parametrize(
    ("operation", "rule", "words"),
    [(3, print, "`operation` must be a function or its name"), (torch.add, "sum", "`rule` must be a function")],
)
def test_what_is_no_rule_is_refused(operation, rule, words):
    with pytest.raises(TypeError, match=words):
        register_rule(operation, rule)


def test_a_penalty_that_is_added_to_the_loss_is_refused_with_advice():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with PerSampleNorms(net) as norms:
        losses = net(numbers(K, 3)).square().sum(1)
        (losses.sum() + sum(parameter.square().sum() for parameter in net.parameters())).backward()
        with pytest.raises(RuntimeError, match="do not sum to its gradient .*belongs in the optimizer"):
            norms.take()


def test_a_schedule_goes_on_where_its_state_was_saved():
    def passes(schedule: Schedule, lengths: list[int]) -> list[bool]:
        wanted = []
        for length in lengths:
            wanted.append(schedule.wants((True, torch.Size([length, 2]))))
            if wanted[-1]:
                schedule.report(failed=False)
        return wanted

    lengths = [4, 4, 3, 4, 3, 5, *[4] * 600, 6, 3, 7]
    through, other = Schedule("auto"), Schedule("auto")
    passes(through, lengths[:400])
    other.load_state_dict(through.state_dict())
    expected = passes(through, lengths[400:])
    assert passes(other, lengths[400:]) == expected
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize(
    "entry",
    [
        {"passes": -1},
        {"passes": 1.0},
        {"last": 10},
        {"checks": 4},
        {"checks": 0},
        {"failed": 1},
        {"shapes": [(True, (4, 2))] * 9},
        {"shapes": [(4, (4, 2))]},
        {"shapes": [(True, (-4, 2))]},
        {"shapes": [()]},
        {"shapes": None},
    ],
)
def test_the_state_of_a_schedule_that_cannot_be_is_refused(entry):
    schedule = Schedule("auto")
    for _ in range(8):
        if schedule.wants((True, torch.Size([4, 2]))):
            schedule.report(failed=False)
    before = schedule.state_dict()
    assert before == {"passes": 8, "checks": 3, "last": 3, "failed": False, "shapes": [(True, (4, 2))]}
    with pytest.raises((TypeError, ValueError), match=f"state\\['{next(iter(entry))}'\\]"):
        schedule.load_state_dict(before | entry)
    assert schedule.state_dict() == before
