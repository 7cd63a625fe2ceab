"""The configuration of DeepSpeed, checked and completed; needs no DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.parallel.deepspeed_config import autocasts, checked, completed, precision_of, stage_of
from composer.parallel.strategy_selection import choose_strategy
from composer.precision import Precision

BF16, FP16, FP32 = Precision.AMP_BF16, Precision.AMP_FP16, Precision.FP32


def complete(config: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """A configuration for a batch of 8 on each of two ranks by default."""
    given_here = {"precision": FP32, "batch_size": 8, "microbatch_size": None, "world_size": 2, "clipping": None}
    return completed(config, **(given_here | arguments))


def numbers(config: dict[str, Any]) -> tuple[int, int, int]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return tuple(config[name] for name in names)  # type: ignore[return-value]


def test_an_empty_dictionary_is_completed_from_the_trainer():
    assert complete({}, microbatch_size=4, clipping=0.5) == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def test_gradients_are_clipped_only_on_request():
    assert complete({})["gradient_clipping"] == 0.0
    assert complete({"gradient_clipping": 2.0})["gradient_clipping"] == 2.0


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 16},
        {"train_micro_batch_size_per_gpu": 8},
        {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    ],
)
def test_batch_size_may_come_from_the_config_only(config):
    assert numbers(complete(config, batch_size=None))[0] == 16


def test_missing_batch_size_is_an_error():
    with pytest.raises(ValueError, match="'train_batch_size'"):
        complete({}, batch_size=None)


@pytest.mark.parametrize(
    ("config", "arguments", "both"),
    [
        ({"train_batch_size": 32}, {}, ("train_batch_size=32", "value is 16")),
        ({"train_micro_batch_size_per_gpu": 2}, {"microbatch_size": 4}, ("per_gpu=2", "value is 4")),
        ({"gradient_accumulation_steps": 4}, {"microbatch_size": 4}, ("steps=4", "value is 2")),
        ({"gradient_clipping": 2.0}, {"clipping": 1.0}, ("gradient_clipping=2.0", "value is 1.0")),
        ({"train_batch_size": 15}, {}, ("15", "world size, 2")),
        ({"train_batch_size": "16"}, {}, ("train_batch_size", "'16'")),
    ],
)
def test_conflicts_with_the_trainer_name_both_values(config, arguments, both):
    with pytest.raises(ValueError) as caught:
        complete(config, **arguments)
    assert all(part in str(caught.value) for part in both)


@given(size=st.integers(1, 64), micro=st.none() | st.integers(1, 80), world_size=st.integers(1, 5))
def test_batch_sizes_are_always_consistent(size, micro, world_size):
    total, part, steps = numbers(complete({}, batch_size=size, microbatch_size=micro, world_size=world_size))
    assert total == part * steps * world_size  # as DeepSpeed demands
    assert part <= size <= part * steps < size + part  # and so many microbatches there will be


def test_precision_from_config_or_trainer():
    assert precision_of({}, None) is None
    assert precision_of({}, FP16) is FP16
    assert precision_of({"bf16": {"enabled": True}}, None) is BF16
    assert precision_of({"fp16": {"enabled": True, "loss_scale": 0}}, FP16) is FP16
    assert precision_of({"bf16": {"enabled": False}}, None) is FP32
    assert precision_of({"torch_autocast": {"enabled": True, "dtype": "float16"}}, None) is FP16


@pytest.mark.parametrize(
    ("config", "asked", "both"),
    [
        ({"bf16": {"enabled": True}}, FP32, ("'fp32'", "'bf16'")),
        ({"fp16": {"enabled": True}}, BF16, ("'amp_bf16'", "'fp16'")),
        ({"bf16": {"enabled": False}}, BF16, ("'amp_bf16'", "enabled=False")),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, None, ("'fp16'", "'bf16'")),
        ({"torch_autocast": {"enabled": True, "dtype": "float8"}}, None, ("torch_autocast", "'float8'")),
        ({}, Precision.AMP_FP8, ("amp_fp8", "amp_bf16")),
    ],
)
def test_conflicting_precisions_are_rejected(config, asked, both):
    with pytest.raises(ValueError) as caught:
        precision_of(config, asked)
    assert all(part in str(caught.value) for part in both)


def test_trainer_precision_enables_its_config_section():
    assert complete({"fp16": {"loss_scale": 128}}, precision=FP16)["fp16"] == {"loss_scale": 128, "enabled": True}
    config = {"torch_autocast": {"enabled": True}}
    assert autocasts(config)
    assert "bf16" not in complete(config, precision=BF16)


def test_user_dictionary_is_not_modified():
    given_one = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
    config = checked(given_one)
    complete(config, precision=BF16)["zero_optimization"]["stage"] = 3
    assert given_one["zero_optimization"] == {"stage": 1}
    assert config == {"zero_optimization": {"stage": 1}, "bf16": {}}


@pytest.mark.parametrize("section", ["optimizer", "scheduler", "amp", "pipeline"])
def test_sections_set_by_the_trainer_are_rejected(section):
    with pytest.raises(ValueError, match=section):
        checked({section: {"type": "Adam"}})


def test_other_mistakes_are_named():
    with pytest.raises(TypeError, match=r"json\.load"):
        checked("ds_config.json")
    with pytest.raises(ValueError, match="got 4"):
        stage_of({"zero_optimization": {"stage": 4}})


@pytest.mark.parametrize(
    "other",
    [{"parallelism_config": {"fsdp": {}}}, {"ddp_sync_strategy": "forced_sync"}, {"find_unused_parameters": True}],
)
def test_second_strategy_is_rejected(other):
    with pytest.raises(ValueError, match="both given"):
        choose_strategy(**other, deepspeed_config={})
