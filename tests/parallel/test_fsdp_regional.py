"""FSDP and regional compilation: the units are compiled once, and all-gathered outside of the graphs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.sharded import Blocks, assert_same, result


class _PlainBlock(nn.Module):
    """A block without a counter of its calls, which the compiler takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(self.norm(x)))


class _PlainBlocks(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_PlainBlock() for _ in range(4)]).double()


def _compiled_by_block(config: dict[str, Any]):
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about weights that are views of what was gathered
        compiled = {"regional": True, "backend": backend, "fullgraph": True}
        return result({"fsdp": config}, make=_PlainBlocks, compile_config=compiled), len(graphs)


@pytest.mark.parametrize("config", [{}, {"activation_checkpointing": True}, {"reshard_after_forward": False}])
def test_fsdp_units_are_compiled_once_in_one_graph(config, two_ranks):
    expected = result(make=_PlainBlocks)
    for found, graphs in two_ranks.run(_compiled_by_block, config):
        assert_same(found, expected)
        assert graphs == 2  # the second has another batch size: the last batch is short
