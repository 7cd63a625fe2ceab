from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.checkpoint import (
    get_metadata_state_dict,
    get_model_state_dict,
    get_optim_state_dict,
    get_resumption_state_dict,
)
from composer.devices import get_device
from tests.common import trainer_of


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), (torch.float64,) * 2]
)
def test_only_floating_point_tensors_change_precision(precision, dtype) -> None:
    state = get_model_state_dict(network(), precision=precision)
    assert {name: value.dtype for name, value in state.items() if value.dtype != dtype} == {
        "1.num_batches_tracked": torch.int64
    }


def test_names_are_selected_by_patterns() -> None:
    model = network()
    assert list(get_model_state_dict(model, include_keys=["0.*"])) == ["0.weight", "0.bias"]
    assert list(get_model_state_dict(model, ignore_keys=["1.*", "0.bias"])) == ["0.weight"]
    with pytest.raises(ValueError, match="Pass include_keys or ignore_keys, not both"):
        get_model_state_dict(model, include_keys="a", ignore_keys="b")


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match="Did you mean 'bf16'"):
        get_model_state_dict(network(), precision="bf61")
    with pytest.raises(ValueError, match="not sharded"):
        get_model_state_dict(network(), sharded_state_dict=True)


def test_optimizer_states_by_name() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    state = get_optim_state_dict(model, optimizer, precision="bf16", include_keys="0.*", cpu_offload=True)
    assert state["param_groups"][0]["params"] == list(state["state"]) == ["0.weight", "0.bias"]
    assert state["state"]["0.weight"]["exp_avg"].dtype is torch.bfloat16


def test_metadata_contains_given_values() -> None:
    told = get_metadata_state_dict(network(), False, "fp32", get_device("cpu"), 8)
    expected = {"model_name": "Sequential", "sharded_state_dict": False, "precision": "fp32", "device": "cpu"}
    assert told.items() >= {**expected, "device_train_microbatch_size": 8, "world_size": 1}.items()
    assert "device" not in get_metadata_state_dict()


def test_resumption_state() -> None:
    trainer = trainer_of()
    trainer.fit()
    found = get_resumption_state_dict(trainer.state)
    assert found["timestamp"]["Timestamp"]["batch"] == 4
    assert not {"model", "optimizers"} & set(found)
