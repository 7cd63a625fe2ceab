from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel

from composer.parallel.config import FSDP2Config, FSDPConfig, ParallelismConfig, TPConfig, as_parallelism_config

# What each key takes beside its default, and a value that is refused, with a word of the reason.
KEYS = {
    "activation_checkpointing": ([True, 2, "selective"], ["sometimes", 0, 1.5]),
    "activation_checkpointing_reentrant": ([False], [True]),
    "activation_cpu_offload": ([True], []),
    "auto_wrap": ([False], []),
    "backward_prefetch": (["BACKWARD_PRE", "backward_post"], ["NONE"]),
    "backward_prefetch_limit": ([3], [0, True, "2"]),
    "cpu_offload": ([True], []),
    "data_parallel_replicate_degree": ([2], []),
    "data_parallel_shard_degree": ([2], []),
    "device_mesh": ([], ["cpu"]),
    "forward_prefetch": ([True], []),
    "forward_prefetch_limit": ([3], [-1]),
    "ignored_modules": ([[torch.nn.Linear(1, 1)]], []),
    "keep_low_precision_grads": ([], [True]),
    "limit_all_gathers": ([False], []),
    "load_monolith_rank0_only": ([True], []),
    "load_planner": ([object()], []),
    "mixed_precision": (["PURE", "full", {"param_dtype": "bf16"}], ["HALF"]),
    "process_group": ([], ["node", "self", [0, 1]]),
    "reshard_after_forward": ([True, 2], []),
    "save_planner": ([object()], []),
    "sharded_ckpt_prefix_dir": (["step{batch}"], []),
    "sharding_strategy": (["NO_SHARD", "hybrid_shard"], ["ZERO"]),
    "state_dict_type": (["sharded"], ["local"]),
    "sync_module_states": ([True], []),
    "te_checkpoint_wrapper": ([], [True]),
    "te_shard_fp8_weight": ([], [True]),
    "use_orig_params": ([], [False]),
    "verbose": ([True], []),
}


def test_every_key_is_tested() -> None:
    assert set(KEYS) == {field.name for field in dataclasses.fields(FSDPConfig)}


@pytest.mark.parametrize("key", KEYS)
def test_keys(key: str) -> None:
    taken, refused = KEYS[key]
    for value in taken:
        config = as_parallelism_config({"fsdp": {key: value}})
        assert config is not None
        assert isinstance(config.fsdp, FSDPConfig)
        expected = (
            value.upper() if key in ("mixed_precision", "sharding_strategy") and isinstance(value, str) else value
        )
        assert getattr(config.fsdp, key) == expected
        assert f"{key}=" in repr(config.fsdp)
    for value in refused:
        with pytest.raises(ValueError, match=key):
            as_parallelism_config({"fsdp": {key: value}})


def test_errors_give_a_remedy() -> None:
    for key, value in (("process_group", "node"), ("use_orig_params", False), ("device_mesh", "cpu")):
        with pytest.raises(ValueError, match=r"(leave it out|degree)"):
            FSDPConfig(**{key: value})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"fdsp": {}}, "Did you mean 'fsdp'"),
        ({"fsdp": {"sharding": "FULL_SHARD"}}, "Did you mean 'sharding_strategy'"),
        ({"fsdp2": {"forward_prefetch": True}}, "fsdp2: there is no 'forward_prefetch'"),
        ({"tp": {"degree": 2}}, "tp: there is no 'degree'"),
        ({"tp": {"tensor_parallel_degree": 2}}, "requires a layer_plan"),
        ({"tp": {"tensor_parallel_degree": 0}}, "must be greater than 0"),
        ({"pp": {}}, "pipeline parallelism requires"),
        ({"cp": {}}, "context parallelism requires"),
        ({"deepspeed": {}}, "deepspeed_config"),
        ({"fsdp": {}, "fsdp2": {}}, "are equivalent; leave one"),
    ],
)
def test_mistakes(config, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_parallelism_config(config)


def test_invalid_types() -> None:
    for wrong in ("fsdp", 1, FSDPConfig()):
        with pytest.raises(TypeError, match="must be a mapping"):
            as_parallelism_config(wrong)
    with pytest.raises(TypeError, match="FSDPConfig"):
        as_parallelism_config({"fsdp": "FULL_SHARD"})


def test_configs_are_normalized() -> None:
    assert as_parallelism_config(None) is None
    assert as_parallelism_config({}) is None
    assert as_parallelism_config({"tp": {"tensor_parallel_degree": 1}}) is None
    assert as_parallelism_config({"fsdp": None}) is None
    plan = {"up": ColwiseParallel()}
    both = as_parallelism_config({"fsdp": {}, "tp": {"tensor_parallel_degree": 2, "layer_plan": plan}})
    assert both is not None
    assert both.tp == TPConfig(tensor_parallel_degree=2, layer_plan=plan)
    second = as_parallelism_config(ParallelismConfig(fsdp2=FSDP2Config(reshard_after_forward=False)))
    assert second is not None
    assert second.fsdp2 is None
    assert second.fsdp is not None
    assert second.fsdp.reshards is False
    assert second.fsdp.state_dict_type == "sharded"


@pytest.mark.parametrize(
    ("strategy", "given", "expected"),
    [
        ("FULL_SHARD", None, True),
        ("SHARD_GRAD_OP", None, False),
        ("NO_SHARD", None, False),
        ("HYBRID_SHARD", None, True),
        ("_HYBRID_SHARD_ZERO2", None, False),
        ("FULL_SHARD", False, False),
        ("SHARD_GRAD_OP", 2, 2),
    ],
)
def test_reshard_after_forward(strategy: str, given, expected) -> None:
    assert FSDPConfig(sharding_strategy=strategy, reshard_after_forward=given).reshards == expected


def test_keys_of_fsdp2() -> None:
    assert FSDP2Config.settable_attrs() == {field.name for field in dataclasses.fields(FSDP2Config)}
    assert FSDP2Config.from_compatible_attrs({"verbose": True}) == FSDP2Config(verbose=True)
    with pytest.raises(ValueError, match="Did you mean 'verbose'"):
        FSDP2Config.from_compatible_attrs({"verbos": True})


def test_mesh_for_layers_is_rejected() -> None:
    with pytest.raises(ValueError, match="set that instead"):
        TPConfig(device_mesh=object())  # type: ignore[arg-type]
