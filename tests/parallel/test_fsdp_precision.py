"""Mixed precision with FSDP: values and dtypes match data parallelism."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from composer import ComposerModel
from tests.common import trainer_of
from tests.ranks import Ranks

WIDTH = 8


class OwnRMSNorm(nn.Module):
    """As those of transformers: its class is not one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Channels(nn.Module):
    """A normalization of (N, C, L), of (N, C)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def forward(self, x):
        return self.norm(x.unflatten(1, (2, -1))).flatten(1)


NORMS: dict[str, Any] = {
    "BatchNorm": lambda: nn.BatchNorm1d(WIDTH),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "InstanceNorm": Channels,
    "own": OwnRMSNorm,
}


class Block(nn.Module):
    def __init__(self, norm: str) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), NORMS[norm]()

    def forward(self, x):
        return x + self.norm(self.linear(x))


class Normed(ComposerModel):
    def __init__(self, norm: str, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList([Block(norm) for _ in range(2)])
        self.top, self.head = NORMS[norm](), nn.Linear(WIDTH, 16, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.formats: dict[str, str] = {}

    def forward(self, batch):
        x = self.embedding(batch[0])
        self.formats["embedding"] = str(x.dtype)
        for block in self.blocks:
            x = block(x)
        self.formats["block"] = str(x.dtype)
        return self.head(self.top(x))

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


def trained(norm: str, arguments: dict[str, Any], tied: bool = False) -> tuple[list[float], dict[str, str], list[Any]]:
    generator = torch.Generator().manual_seed(1)
    data = [tuple(torch.randint(16, (8,), generator=generator) for _ in range(2)) for _ in range(4)]
    torch.manual_seed(0)
    model = Normed(norm, tied)
    trainer = trainer_of(model, data, precision="amp_bf16", max_duration="4ba", eval_dataloader=data, **arguments)
    losses = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")  # RMSNorm under autocast
        # InstanceNorm's; its weights are gathered until the backward pass, so that nothing is to be fetched before it.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .FSDPInstanceNorm1d. returned a view")
        for _ in range(4):
            trainer.fit(duration="1ba")
            losses.append(trainer.state.total_loss_dict["loss/train/total"].item())
    return losses, model.formats, [str(p.dtype) for p in model.parameters()]


FSDP: dict[str, Any] = {"parallelism_config": {"fsdp": {}}}


@pytest.mark.parametrize("norm", NORMS)
def test_matches_data_parallelism(two_ranks: Ranks, norm: str) -> None:
    expected = two_ranks.run(trained, norm, {})[0]
    found = two_ranks.run(trained, norm, FSDP)[0]
    assert found[0] == pytest.approx(expected[0], rel=2e-3)
    assert found[1:] == expected[1:]
    assert set(found[1].values()) == {"torch.float32"}


@pytest.mark.parametrize(
    "fsdp",
    [
        {"activation_checkpointing": True},
        {"sharding_strategy": "SHARD_GRAD_OP"},
        {"sharding_strategy": "NO_SHARD"},
        {"mixed_precision": "PURE"},
        {"mixed_precision": "FULL"},
        {"auto_wrap": False},
        {"forward_prefetch": True},
    ],
    ids=str,
)
def test_with_other_settings(two_ranks: Ranks, fsdp: dict[str, Any]) -> None:
    expected = two_ranks.run(trained, "BatchNorm", {})[0]
    found = two_ranks.run(trained, "BatchNorm", {"parallelism_config": {"fsdp": fsdp}})[0]
    assert found[0] == pytest.approx(expected[0], rel=1e-2)
    assert set(found[1].values()) == {"torch.float32"}


class Convolutions(ComposerModel):
    """Layers of the same class side by side, each of which is a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(16, WIDTH) for _ in range(2)])
        layers: list[nn.Module] = []
        for norm in (nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)):
            layers += [nn.Conv1d(4, 4, 3, padding=1), norm, nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * WIDTH, 16))
        self.formats: set[torch.dtype] = set()

    def forward(self, batch):
        x = [table(batch[0]) for table in self.tables]
        self.formats.update(one.dtype for one in x)
        return self.layers(torch.stack([*x, *x], dim=1))

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


def trained_convolutions(fsdp: dict[str, Any] | None) -> tuple[float, float, set[torch.dtype], bool]:
    generator = torch.Generator().manual_seed(1)
    data = [tuple(torch.randint(16, (8,), generator=generator) for _ in range(2)) for _ in range(3)]
    torch.manual_seed(0)
    model, config = Convolutions(), {} if fsdp is None else {"parallelism_config": {"fsdp": fsdp}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = trainer_of(model, data, precision="amp_bf16", max_duration="3ba", optimizers=optimizer, **config)
    trainer.fit()
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    size = sum(weight.detach().double().square().sum().item() for weight in weights)
    loss = trainer.state.total_loss_dict["loss/train/total"].item()
    return loss, size, model.formats, trainer.state.autocast_cache_enabled


def test_layers_that_are_units_match_data_parallelism(two_ranks: Ranks) -> None:
    expected = two_ranks.run(trained_convolutions, None)[0]
    for mixed in ("DEFAULT", "PURE"):
        for found in two_ranks.run(trained_convolutions, {"mixed_precision": mixed}):
            assert found[:2] == pytest.approx(expected[:2], rel=1e-2)
            assert found[2:] == ({torch.float32}, True)


def test_layers_that_are_units_of_replicas(four_ranks: Ranks) -> None:
    expected = four_ranks.run(trained_convolutions, None)[0]
    degrees = {"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": 2}
    for found in four_ranks.run(trained_convolutions, degrees):
        assert found[:2] == pytest.approx(expected[:2], rel=1e-2)


def test_microbatches(two_ranks: Ranks) -> None:
    more = {"device_train_microbatch_size": 2}
    expected = two_ranks.run(trained, "LayerNorm", more)[0]
    assert two_ranks.run(trained, "LayerNorm", {**FSDP, **more})[0][0] == pytest.approx(expected[0], rel=2e-3)


def test_tied_embedding(two_ranks: Ranks) -> None:
    expected = two_ranks.run(trained, "LayerNorm", {}, True)[0]
    found = two_ranks.run(trained, "LayerNorm", FSDP, True)[0]
    assert found[0] == pytest.approx(expected[0], rel=1e-2)
    assert found[1]["embedding"] == "torch.bfloat16"  # see mixed_precision in FSDPConfig


def other_precision(mixed: str) -> str:
    config = {"fsdp": {"mixed_precision": mixed}}
    trainer = trainer_of(precision="fp32", parallelism_config=config, max_duration="3ba")
    trainer.fit(duration="1ba", precision="fp32")
    try:
        trainer.fit(duration="1ba", precision="amp_bf16")
    except ValueError as error:
        assert trainer.state.precision.value == "fp32"
        trainer.fit(duration="1ba")
        return str(error)
    return trainer.state.precision.value


def test_other_precision_is_rejected(two_ranks: Ranks) -> None:
    for message in two_ranks.run(other_precision, "DEFAULT"):
        assert message.startswith("precision='amp_bf16', but the weights are sharded for another precision")
        assert "Pass the precision to the Trainer" in message
    assert two_ranks.run(other_precision, "FULL") == ["amp_bf16"] * 2


class Casts(TorchDispatchMode):
    """Notes what is cast to bfloat16 and is as large as a weight of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[StorageWeakRef] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        is_cast = function is torch.ops.aten._to_copy.default and result.dtype == torch.bfloat16
        if is_cast and result.numel() == LARGE * LARGE:
            self.found.append(StorageWeakRef(result.untyped_storage()))
        return result

    def alive(self) -> int:
        return sum(not one.expired() for one in self.found)


LARGE = 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(LARGE, LARGE)

    def forward(self, x):
        return self.linear(x).tanh()


class Deep(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Layer() for _ in range(5)])
        self.alive: list[int] = []

    def forward(self, batch):
        x = batch[0]
        for block in self.blocks:
            x = block(x)
            if casts:
                self.alive.append(casts[-1].alive())
        return x

    def loss(self, outputs, batch):
        return (outputs - batch[1]).square().mean()


casts: list[Casts] = []


def copies_in_memory(fsdp: dict[str, Any]) -> tuple[list[int], list[int], int, list[float]]:
    generator = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(2, 3, LARGE, generator=generator)) for _ in range(2)]
    torch.manual_seed(0)
    model, config = Deep(), {"parallelism_config": {"fsdp": fsdp}} if fsdp else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = trainer_of(model, data, precision="amp_bf16", max_duration="2ba", optimizers=optimizer, **config)
    with Casts() as watched:
        casts.append(watched)
        try:
            trainer.fit()
            training, model.alive = model.alive, []
            found = len(watched.found)
            watched.found.clear()
            trainer.eval(data)
        finally:
            casts.clear()
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return training, model.alive, found, [weight.sum().item() for weight in weights]


def test_casts_are_freed_when_their_block_is_resharded(two_ranks: Ranks) -> None:
    """Without gradients, or where activations are recomputed; otherwise autograd keeps them until the backward pass."""
    plain = two_ranks.run(copies_in_memory, {})[0]
    assert max(plain[0]) == max(plain[1]) == 5, "data parallelism keeps them, which shows that the watch sees them"
    full = {"mixed_precision": "FULL"}
    for recomputes in (False, True):
        config = {**full, "activation_checkpointing": recomputes}
        for training, evaluation, found, weights in two_ranks.run(copies_in_memory, config):
            assert found >= 5, "nothing was cast"
            # The first layer's weight is not needed for the backward pass, as its input gets no gradient.
            assert max(training) <= 1 if recomputes else max(training) == 4
            assert max(evaluation) <= 1
            assert weights == pytest.approx(plain[3], rel=1e-3)


def test_nothing_is_cast_if_all_gathered_in_low_precision(two_ranks: Ranks) -> None:
    for training, evaluation, _, _ in two_ranks.run(copies_in_memory, {"mixed_precision": "PURE"}):
        assert max(training) <= 1  # inside a gathering: the part of this rank, not a copy of the weight
        assert max(evaluation) <= 1


class Again(Deep):
    """Runs its blocks several times."""

    def forward(self, batch):
        return super().forward((super().forward((super().forward(batch),)),))


def casts_of_a_step(fsdp: dict[str, Any] | None) -> int:
    config = {} if fsdp is None else {"parallelism_config": {"fsdp": fsdp}}
    trainer = trainer_of(Again(), [tuple(torch.ones(2, 3, LARGE))], precision="amp_bf16", max_duration="1ba", **config)
    with Casts() as watched:
        trainer.fit()
    return len(watched.found)


@pytest.mark.parametrize(
    "config",
    [{"sharding_strategy": "SHARD_GRAD_OP"}, {"sharding_strategy": "NO_SHARD"}, {"reshard_after_forward": False}],
)
def test_block_that_stays_unsharded_is_cast_once(config: dict[str, Any], two_ranks: Ranks) -> None:
    full = {"mixed_precision": "FULL"}
    assert two_ranks.run(casts_of_a_step, None) == [5, 5]
    assert two_ranks.run(casts_of_a_step, {**full, **config}) == [5, 5]
    assert min(two_ranks.run(casts_of_a_step, full)) >= 15


def sharded_layers(config: dict[str, Any] | None) -> float:
    generator = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(2, 4, LARGE, generator=generator)) for _ in range(2)]
    torch.manual_seed(0)
    model = Deep()
    plan = {f"blocks.{number}.linear": ColwiseParallel(output_layouts=Replicate()) for number in range(5)}
    tensor = {"tp": {"tensor_parallel_degree": 2, "layer_plan": plan}}
    parallelism = None if config is None else {**tensor, "fsdp": config}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = trainer_of(
        model, data, precision="amp_bf16", max_duration="2ba", optimizers=optimizer, parallelism_config=parallelism
    )
    trainer.fit()
    trainer.eval(data)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return sum(weight.detach().double().abs().sum().item() for weight in weights)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_sharded_layers_under_autocast(strategy: str, four_ranks: Ranks) -> None:
    expected = four_ranks.run(sharded_layers, None)
    found = four_ranks.run(sharded_layers, {"mixed_precision": "FULL", "sharding_strategy": strategy})
    assert found == pytest.approx(expected, rel=1e-3)
