from __future__ import annotations

import pytest
from torch import nn

from composer.parallel.config import FSDPConfig
from composer.parallel.wrapping import Unit, float32_units, units_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    def forward(self, x):
        return self.mlp(x)


class Net(nn.Module):
    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.blocks = nn.ModuleList([Block() for _ in range(number)])
        self.head = nn.Linear(2, 4, bias=False)


def _names(model: nn.Module, **arguments) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[unit.module] for unit in units_of(model, **arguments)]


def test_repeated_blocks_inner_ones_first():
    assert _names(Net()) == ["blocks.2", "blocks.1", "blocks.0"]


def test_unrepeated_modules_are_descended_into():
    assert _names(Net(1)) == ["blocks.0.mlp.2", "blocks.0.mlp.0"]


def test_no_blocks():
    assert _names(Net(), auto_wrap=False) == []


def test_stages_are_containers():
    """What a stage holds is repeated, not the stages; nothing inside a block is."""
    stages = nn.Sequential(*[nn.Sequential(Block(), Block()) for _ in range(2)])
    assert _names(stages) == ["1.1", "1.0", "0.1", "0.0"]


def test_modules_without_weights_are_not_wrapped():
    assert _names(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(1, 1))) == []


def test_ignored_modules_are_left_alone():
    model = Net()
    assert _names(model, ignored=[model.blocks[1]]) == ["blocks.2", "blocks.0"]


def test_tie_outside_of_blocks_does_not_affect_them():
    model = Net()
    model.head.weight = model.embedding.weight
    assert len(_names(model)) == 3


def test_block_with_a_tied_weight_belongs_to_the_root():
    model = Net()
    model.blocks[0].mlp[0].weight = model.blocks[2].mlp[0].weight
    assert _names(model) == ["blocks.1"]
    model.blocks[0]._fsdp_wrap = True
    with pytest.raises(ValueError, match=r"Block is selected as an FSDP unit, but shares blocks.0.mlp.0.weight"):
        units_of(model)


def test_reused_block_is_wrapped_once():
    block = Block()
    model = nn.Module()
    model.blocks = nn.ModuleList([block, block, Block()])
    assert _names(model) == ["blocks.2", "blocks.0"]


def test_modules_declare_blocks():
    model = Net()
    model.head._fsdp_wrap = True
    model.blocks[0]._fsdp_wrap = True
    model.blocks[1]._fsdp_wrap = False
    assert _names(model) == ["head", "blocks.0"]


class Declaring(Net):
    def fsdp_wrap_fn(self, module):
        if isinstance(module, Block):
            return {"reshard_after_forward": False}
        return isinstance(module, nn.Embedding)


def test_model_or_child_declares_blocks():
    assert _names(Declaring()) == ["blocks.2", "blocks.1", "blocks.0", "embedding"]
    outer = nn.Module()
    outer.model, outer.other = Declaring(), Block()
    units = units_of(outer)
    assert len(units) == 4
    assert [unit.settings for unit in units] == [{"reshard_after_forward": False}] * 3 + [{}]
    outer.model.blocks[0]._fsdp_wrap = False  # a module's own word comes first
    assert len(units_of(outer)) == 3


def test_invalid_declarations_are_rejected():
    model = Net()
    model.blocks._fsdp_wrap = True
    with pytest.raises(ValueError, match=r"blocks \(ModuleList\) is selected as an FSDP unit, but has no forward"):
        units_of(model)
    model = Declaring()
    model.fsdp_wrap_fn = lambda module: {"sharding": 1} if isinstance(module, Block) else False
    with pytest.raises(ValueError, match=r"blocks.0: the key of fsdp_wrap_fn must be one of"):
        units_of(model)


def _precisions(model: nn.Module, units: list[Unit], config: FSDPConfig) -> list[dict[str, dict[str, object]]]:
    names = {module: name for name, module in model.named_modules()}
    return [
        {names[unit.module]: unit.settings for unit in some} for some in float32_units(model, units, config, "bf16")
    ]


def _normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.LayerNorm(2))


STAYS = {"mixed_precision": "FULL", "reshard_after_forward": False}


@pytest.mark.parametrize("mixed", ["DEFAULT", "PURE"])
def test_normalization_that_is_a_unit_is_gathered_in_float32(mixed):
    model, config = _normed(), FSDPConfig(mixed_precision=mixed)
    given = {"reshard_after_forward": 2}
    units = [Unit(model[2], given), Unit(model[0])]
    blocks, further = _precisions(model, units, config)
    assert blocks == {"2": {"reshard_after_forward": 2, "mixed_precision": "FULL"}, "0": {}}
    assert further == {"1.1": STAYS}
    assert given == {"reshard_after_forward": 2}, "the user's dict is unchanged"


@pytest.mark.parametrize("mixed", ["FULL", {"param_dtype": "bf16"}])
def test_other_precisions_are_not_changed(mixed):
    model, config = _normed(), FSDPConfig(mixed_precision=mixed)
    assert _precisions(model, [Unit(model[2])], config) == [{"2": {}}, {}]


def test_innermost_unit_decides_on_the_precision_of_a_normalization():
    model = _normed()
    for outer, inner, config, wide in (
        ("FULL", {}, "DEFAULT", True),
        ("FULL", {"mixed_precision": "pure"}, "FULL", True),
        ("DEFAULT", {}, "FULL", False),
        ("DEFAULT", {"mixed_precision": {"param_dtype": "bf16"}}, "PURE", False),
    ):
        stack = nn.Sequential(model)
        units = [Unit(model[1], dict(inner)), Unit(model, {"mixed_precision": outer})]
        found = _precisions(stack, units, FSDPConfig(mixed_precision=config))[1]
        assert ("0.1.1" in found) is wide
        assert ("0.2" in found) is (outer == "DEFAULT")
