from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.parallel.config import FSDPConfig
from composer.parallel.mixed_precision import autocast_cache_enabled, mixed_precision_policy
from composer.parallel.wrapping import Unit
from composer.precision import Precision

SHORT, WIDE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("value", "precision", "expected"),
    [
        ("DEFAULT", None, (None, None, False)),
        ("DEFAULT", "fp32", (None, None, False)),
        ("PURE", "fp32", (None, None, False)),
        ("DEFAULT", "amp_bf16", (SHORT, WIDE, False)),
        ("DEFAULT", Precision.AMP_FP16, (torch.float16, WIDE, False)),
        ("DEFAULT", "amp_fp8", (SHORT, WIDE, False)),
        ("PURE", "amp_bf16", (SHORT, SHORT, False)),
        ("FULL", "amp_bf16", (None, None, False)),
        ({}, "fp32", (None, None, True)),
        ({"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": None}, "fp32", (SHORT, WIDE, True)),
        ({"param_dtype": torch.float16}, "amp_bf16", (torch.float16, None, False)),
        ({"param_dtype": "torch.bfloat16", "cast_forward_inputs": False}, "fp32", (SHORT, None, False)),
    ],
)
def test_policies(value, precision, expected):
    policy = mixed_precision_policy(value, precision)
    assert (policy.param_dtype, policy.reduce_dtype, policy.cast_forward_inputs) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"param": "bf16"}, "Did you mean 'param_dtype'"),
        ({"param_dtype": "bf17"}, "param_dtype must be one of"),
        ({"buffer_dtype": "bf16"}, "buffers keep their dtype"),
    ],
)
def test_mistakes(value, words):
    with pytest.raises(ValueError, match=words):
        mixed_precision_policy(value)


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({}, {}, True),
        ({"mixed_precision": "PURE"}, {}, True),
        ({"mixed_precision": "FULL"}, {}, False),
        ({"mixed_precision": {"param_dtype": "fp32"}}, {}, False),
        ({"mixed_precision": "FULL", "sharding_strategy": "HYBRID_SHARD"}, {}, False),
        ({"mixed_precision": "FULL", "reshard_after_forward": 2}, {}, False),
        ({"mixed_precision": "FULL", "sharding_strategy": "_HYBRID_SHARD_ZERO2"}, {}, True),
        ({"mixed_precision": "FULL", "sharding_strategy": "SHARD_GRAD_OP"}, {}, True),
        ({"mixed_precision": "FULL", "sharding_strategy": "NO_SHARD"}, {}, True),
        ({"mixed_precision": "FULL", "reshard_after_forward": False}, {}, True),
        ({"mixed_precision": "FULL"}, {"reshard_after_forward": False}, True),
        ({}, {"mixed_precision": "FULL"}, False),
        ({"reshard_after_forward": False}, {"mixed_precision": "FULL", "reshard_after_forward": True}, False),
    ],
)
def test_casts_are_cached_unless_their_weights_are_resharded(config, settings, expected):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    last = Unit(model[1], {"mixed_precision": "PURE"})
    assert autocast_cache_enabled(model, [Unit(model[0], settings), last], FSDPConfig(**config), "amp_bf16") is expected
    assert autocast_cache_enabled(model, [], FSDPConfig(**config), "amp_bf16")


def test_normalizations_that_are_units_are_not_cast():
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Embedding(1, 1))
    units = [Unit(module, {"mixed_precision": "FULL"}) for module in model]
    assert autocast_cache_enabled(model, units, FSDPConfig(), "amp_bf16")
