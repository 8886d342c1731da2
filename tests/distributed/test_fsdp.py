"""Models whose parameters are spread over the ranks: `fully_shard` trains and measures right, the rest is refused."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from adamcb import AdamCB
from tests.distributed.launch import launch
from tests.training.problem import cnn, digits, losses_of, mlp


def shard(model: nn.Module) -> None:
    """Spread every layer over the ranks, and what is left with the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in list(model.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(parameter: nn.Parameter) -> np.ndarray:
    tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter  # pyright: ignore
    return tensor.detach().numpy()


def train(kind: str, sharded_weights: bool = False) -> dict:
    """Train an epoch, and return all scores that the selection heard of, and the parameters."""
    model = {"mlp": mlp, "cnn": cnn}[kind](dtype=torch.float64)
    spread = dist.is_initialized()
    if spread:
        shard(model)
    trainer = AdamCB(model, digits(200, torch.float64), 16, lr=0.01, sharded=sharded_weights, scores="exact")
    heard, learn = [], trainer.selection.update
    trainer.selection.update = lambda draw, scores: (heard.append(scores.tolist()), learn(draw, scores))[1]
    losses = [trainer.step(losses_of(model, x, y)).item() for x, y in trainer]
    refused = None
    if spread:
        assert all(parameter.numel() > parameter.to_local().numel() for parameter in model.parameters())  # pyright: ignore
        with pytest.raises(NotImplementedError) as caught:
            trainer.save("run.pt")
        refused = str(caught.value)
    return {"scores": heard, "losses": losses, "parameters": [*map(whole, model.parameters())], "refused": refused}


@pytest.mark.parametrize("kind", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_fully_shard_trains_as_one_process_does_and_its_scores_are_right(kind):
    expected = train(kind)
    for rank in launch(2, train, kind):
        np.testing.assert_allclose(rank["scores"], expected["scores"], rtol=1e-9)
        np.testing.assert_allclose(rank["losses"], expected["losses"], rtol=1e-9)
        for one, other in zip(rank["parameters"], expected["parameters"], strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-9)
        assert "must be saved by torch.distributed.checkpoint" in rank["refused"]


def test_fully_shard_goes_with_sharded_weights():
    first, second = launch(2, train, "mlp", True)
    for one, other in zip(first["parameters"], second["parameters"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.shape(first["scores"]) == (12, 8)  # each rank hears of its own half


def build_refused(kind: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model: nn.Module = mlp()
    if kind == "flat":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"1": ColwiseParallel()})
    AdamCB(model, digits(200), 16)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("flat", "must not be a FullyShardedDataParallel"), ("tensor", "got 1.weight with placements .*Shard")],
)
def test_other_ways_to_spread_a_model_are_refused(kind, message):
    for rank in launch(2, build_refused, kind):
        with pytest.raises(NotImplementedError, match=message):
            raise rank
