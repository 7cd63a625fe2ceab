"""Tensor parallelism: sharded layers compute what full layers compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from composer import dist
from composer.parallel import TPConfig, prepare_tp_module
from composer.parallel.strategy_selection import choose_strategy
from composer.parallel.tensor_parallel import sum_gradients
from tests.parallel.sharded import PLAN, Blocks, adam, assert_same, data_of, full_tensor, full_weights, result, trained
from tests.parallel.test_fsdp import ALGORITHMS, OPTIMIZERS


def _tp(degree: int, plan: Any = None, **config: Any) -> dict[str, Any]:
    return {"tp": {"tensor_parallel_degree": degree, "layer_plan": PLAN if plan is None else plan}, **config}


@pytest.fixture(scope="module")
def expected():
    return result(epochs=1)


def _run(degree: int, config: dict[str, Any], arguments: dict[str, Any]):
    trainer = trained(_tp(degree, **config), **arguments, epochs=1)
    model, strategy = trainer.state.model, trainer._run.strategy
    found = full_weights(model)
    found["loss"] = full_tensor(trainer.state.total_loss_dict["loss/train/total"]).double()
    size = strategy.data_group.size()
    samples = trainer.state.timestamp.sample.value
    return found, strategy.name, (strategy.data_rank, strategy.data_world_size, size), samples, trainer.state.seed


def test_tensor_parallel_only(two_ranks, expected):
    for found, name, share, samples, seed in two_ranks.run(_run, 2, {}, {"device_train_microbatch_size": 3}):
        assert_same(found, expected)
        assert name == "tp"
        assert share == (0, 1, 1)
        assert samples == 29  # each counted once
        assert seed == 1  # the same random numbers, for the same samples


@pytest.mark.parametrize("config", [{}, {"fsdp": {}}, {"fsdp": {"activation_checkpointing": True}}])
def test_with_data_parallelism(four_ranks, expected, config):
    answers = four_ranks.run(_run, 2, config, {"device_train_microbatch_size": 1})
    for rank, (found, name, share, samples, seed) in enumerate(answers):
        assert_same(found, expected)
        assert name == "fsdp"
        assert share == (rank // 2, 2, 2)
        assert samples == 29
        assert seed == 1 + rank // 2


def _with_method(name: str, degree: int, config: dict[str, Any]):
    return result(None if not degree else _tp(degree, **config), algorithms=ALGORITHMS[name](), epochs=1)


@pytest.mark.parametrize("name", ["clip_adaptive", "clip_norm", "clip_value", "ema", "sam_adaptive", "zclip"])
def test_methods(two_ranks, four_ranks, name):
    """The norm counts replicated tensors once, and each shard once."""
    alone = _with_method(name, 0, {})
    for found in two_ranks.run(_with_method, name, 2, {}):
        assert_same(found, alone)
    for found in four_ranks.run(_with_method, name, 2, {"fsdp": {}}):
        assert_same(found, alone)


def _with_optimizer(name: str, degree: int, config: dict[str, Any]):
    return result(None if not degree else _tp(degree, **config), optimizers=OPTIMIZERS[name], epochs=1)


@pytest.mark.parametrize("name", ["decoupled_adam", "decoupled_sgd", "muon"])
def test_optimizers(two_ranks, four_ranks, name):
    alone = _with_optimizer(name, 0, {})
    for found in two_ranks.run(_with_optimizer, name, 2, {}):
        assert_same(found, alone)
    for found in four_ranks.run(_with_optimizer, name, 2, {"fsdp": {}}):
        assert_same(found, alone)


def _sequences():
    """Norms of parts of sequences have gradients that are sums over the processes."""
    plan = {
        "first": ColwiseParallel(output_layouts=Shard(0)),
        "blocks.*.norm": SequenceParallel(sequence_dim=0),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(0)),
        "blocks.*.down": RowwiseParallel(output_layouts=Shard(0)),
        "last": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    trainer = trained(_tp(2, plan), _Even, epochs=1)
    return full_weights(trainer.state.model), {type(p).__name__ for p in trainer.state.model.parameters()}


class _Even(Blocks):
    """Takes the first four samples only, which shard evenly among two ranks, and has all weights in the plan."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            del block.gain
            block.gain = 1.0

    def forward(self, batch):
        return super().forward((batch[0][:4],))

    def loss(self, outputs, batch):
        return super().loss(outputs, (None, batch[1][:4]))


def test_sequence_parallel_styles(two_ranks):
    alone = result(make=_Even, epochs=1)
    del alone["loss"]
    for found, kinds in two_ranks.run(_sequences):
        assert_same(found, alone)
        assert "DTensor" in kinds


def _dropped():
    """Ranks that shard a layer share their random state; ranks with other data have another."""
    draws = []

    class Drawing(Blocks):
        def forward(self, batch):
            draws.append(torch.rand(()).item())
            return super().forward(batch)

    trained(_tp(2), Drawing, epochs=1)
    return draws


def test_random_state(four_ranks):
    one, same, other, _ = four_ranks.run(_dropped)
    assert one == same
    assert one != other


def _by_hand():
    torch.manual_seed(dist.get_global_rank())
    model = Blocks()
    optimizer = adam(model)
    prepare_tp_module(model, optimizer, TPConfig(tensor_parallel_degree=2, layer_plan=PLAN))
    up = model.blocks[0].up.weight
    assert isinstance(up, DTensor)
    return up.placements, any(p is up for p in optimizer[0].param_groups[0]["params"]), full_tensor(up)


def test_in_custom_loops(two_ranks):
    (places, follows, up), (_, _, other) = two_ranks.run(_by_hand)
    assert places == (Shard(0),)
    assert follows
    torch.testing.assert_close(up, other, rtol=0, atol=0)


def _muon_by_hand(degree: int):
    torch.manual_seed(0)
    model = Blocks(torch.float32)
    optimizers = OPTIMIZERS["muon"](model)
    optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    prepare_tp_module(model, optimizers, TPConfig(tensor_parallel_degree=degree, layer_plan=PLAN))
    for batch in data_of(dtype=torch.float32)[:2]:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        sum_gradients(model.parameters())
        for optimizer in optimizers:
            optimizer.step()
    return full_weights(model)


def test_muon_steps_full_matrices_in_custom_loops(two_ranks):
    alone = _muon_by_hand(1)
    for found in two_ranks.run(_muon_by_hand, 2):
        assert_same(found, alone, atol=1e-5)


def _lbfgs_by_hand():
    model = Blocks()
    with pytest.raises(ValueError, match="LBFGS needs all parameters as one vector"):
        prepare_tp_module(
            model, torch.optim.LBFGS(model.parameters()), TPConfig(tensor_parallel_degree=2, layer_plan=PLAN)
        )


def test_lbfgs_is_rejected_in_custom_loops(two_ranks):
    two_ranks.run(_lbfgs_by_hand)


def _refusals():
    found = []
    for config, arguments in (
        (_tp(2, {"blocks.*.upp": ColwiseParallel()}), {}),
        (_tp(3), {}),
        (_tp(2, fsdp={}), {}),
        (_tp(2), {"ddp_sync_strategy": "multi_auto_sync"}),
        (_tp(2), {"optimizers": lambda model: torch.optim.LBFGS(model.parameters())}),
    ):
        with pytest.raises(ValueError, match=r"\w") as error:
            trained(config, **arguments)
        found.append(str(error.value))
    return found


def test_unsupported_settings_are_rejected_with_the_reason(two_ranks):
    words = ("has no such module", "does not divide", "uses all ranks", "train on the same batch", "LBFGS")
    for found in two_ranks.run(_refusals):
        for text, part in zip(found, words, strict=True):
            assert part in text


def test_single_rank_is_not_sharded():
    plan = {"up": ColwiseParallel()}
    assert choose_strategy({"tp": {"tensor_parallel_degree": 1, "layer_plan": plan}}).name == "single"
    with pytest.raises(ValueError, match="does not divide the world size, 1"):
        choose_strategy(_tp(2))
