"""Optimizer state that the host reads is on the CPU, for every optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer._host_optimizer_state import host_values_back, map_device_values


class Custom(torch.optim.NAdam):
    """Not torch's own."""


def stepped(kind: type[torch.optim.NAdam]) -> tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = kind([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    return optimizer, optimizer.state[parameter]


@pytest.mark.parametrize("kind", [torch.optim.NAdam, Custom])
@pytest.mark.parametrize("capturable", [False, True])
def test_values_are_moved_or_kept(kind: type[torch.optim.NAdam], capturable: bool) -> None:
    optimizer, state = stepped(kind)
    optimizer.param_groups[0]["capturable"] = capturable
    map_device_values(optimizer, lambda value: value.to("meta"))
    found = {name: value.device.type for name, value in state.items()}
    place = "meta" if capturable else "cpu"
    assert found == {"step": place, "mu_product": place, "exp_avg": "meta", "exp_avg_sq": "meta"}
    host_values_back(optimizer)
    assert {name: value.device.type for name, value in state.items()} == found


def test_values_moved_by_loading_are_moved_back(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, state = stepped(torch.optim.NAdam)
    back: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: back.append(tensor) or tensor)
    host_values_back(optimizer)
    assert len(back) == 1
    assert back[0] is state["mu_product"]
