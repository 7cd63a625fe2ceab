"""Validate the DeepSpeed configuration, and complete it from the Trainer's arguments."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from composer._numbers import as_integer
from composer.precision import Precision

__all__ = ["autocasts", "checked", "completed", "precision_of", "stage_of"]

_LOW_PRECISION: Mapping[str, Precision] = {"fp16": Precision.AMP_FP16, "bf16": Precision.AMP_BF16}
_AUTOCAST: Mapping[str, Precision] = {
    "float16": Precision.AMP_FP16,
    "fp16": Precision.AMP_FP16,
    "bfloat16": Precision.AMP_BF16,
    "bf16": Precision.AMP_BF16,
}
_REJECTED_SECTIONS: Mapping[str, str] = {
    "optimizer": "Pass the optimizer to the Trainer: optimizers=...",
    "scheduler": "Pass the schedule to the Trainer: schedulers=...",
    "amp": "It configures mixed precision with Apex; use 'bf16' or 'fp16'.",
    "pipeline": "Pipeline parallelism requires a model that is written for it.",
    "curriculum_learning": "Use the algorithm SeqLengthWarmup instead.",
    "data_efficiency": "Use a train_dataloader that samples the data as needed.",
}


def checked(config: Any) -> dict[str, Any]:
    """Return a validated copy of a configuration without the entries ``"auto"``.

    Args:
        config: The user's configuration.

    Raises:
        TypeError: ``config`` is not a dictionary.
        ValueError: ``config`` has a section that the Trainer replaces.

    >>> checked(
    ...     {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    ... )
    {'zero_optimization': {'stage': 2}}
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"deepspeed_config must be a dictionary, as json.load() returns it for a file; got {config!r}.")
    config = cast("Mapping[str, Any]", config)
    for section, remedy in _REJECTED_SECTIONS.items():
        if config.get(section):
            raise ValueError(f"deepspeed_config has the section {section!r}, which is not supported. {remedy}")
    return _without_auto(config)


def stage_of(config: Mapping[str, Any]) -> int:
    """Return the ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also weights.

    Args:
        config: As :func:`checked` returns it.

    Raises:
        ValueError: The stage is not 0, 1, 2 or 3.

    >>> stage_of({}), stage_of({"zero_optimization": {"stage": 3}})
    (0, 3)
    """
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ValueError(f"deepspeed_config: the stage in 'zero_optimization' must be 0, 1, 2 or 3; got {stage!r}.")
    return stage


def autocasts(config: Mapping[str, Any]) -> bool:
    """Return whether weights stay in float32 and autocast is used, as without DeepSpeed.

    Args:
        config: As :func:`checked` returns it.

    >>> (
    ...     autocasts({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    ...     autocasts({"bf16": {"enabled": True}}),
    ... )
    (True, False)
    """
    return bool(config.get("torch_autocast", {}).get("enabled", False))


def precision_of(config: Mapping[str, Any], requested: Precision | None) -> Precision | None:
    """Return the precision of a configuration or an argument; None if neither sets it.

    Args:
        config: As :func:`checked` returns it.
        requested: The Trainer's argument, or None.

    Raises:
        ValueError: The two conflict, or DeepSpeed does not support the precision.

    >>> precision_of({"bf16": {"enabled": True}}, None)
    <Precision.AMP_BF16: 'amp_bf16'>
    """
    if requested is Precision.AMP_FP8:
        raise ValueError("precision='amp_fp8' is not supported with deepspeed_config; use 'amp_bf16'.")
    stated = {name: config[name].get("enabled") for name in _LOW_PRECISION if "enabled" in config.get(name, {})}
    wanted = {name: precision for name, precision in _LOW_PRECISION.items() if stated.get(name)}
    if autocasts(config):
        dtype = config["torch_autocast"].get("dtype", "bfloat16")
        if dtype not in _AUTOCAST:
            raise ValueError(
                f"deepspeed_config: the dtype of 'torch_autocast' must be bfloat16 or float16; got {dtype!r}."
            )
        wanted["torch_autocast"] = _AUTOCAST[dtype]
    if len(wanted) > 1:
        raise ValueError(f"deepspeed_config enables {' and '.join(map(repr, wanted))} at once; leave one of them.")
    for name, precision in wanted.items():
        if requested is not None and requested is not precision:
            raise ValueError(
                f"precision={requested.value!r}, but deepspeed_config enables {name!r}, which is {precision.value!r}; "
                f"leave one of them out."
            )
        return precision
    for name, precision in _LOW_PRECISION.items():
        if requested is precision and stated.get(name) is False:
            raise ValueError(
                f"precision={precision.value!r}, but deepspeed_config has {name!r} with enabled=False; leave one of "
                f"them out."
            )
    return Precision.FP32 if requested is None and False in stated.values() else requested


def completed(
    config: Mapping[str, Any],
    *,
    precision: Precision,
    batch_size: int | None,
    microbatch_size: int | None,
    world_size: int,
    clipping: float | None,
) -> dict[str, Any]:
    """Return the full configuration, completed from the Trainer's arguments.

    Args:
        config: As :func:`checked` returns it.
        precision: The training precision.
        batch_size: Number of samples per batch and rank, if known from the data.
        microbatch_size: Number of samples per microbatch; None for the full batch.
        world_size: The world size.
        clipping: The gradient norm threshold of :class:`.GradientClipping`; None without it.

    Raises:
        ValueError: The configuration conflicts with the arguments, or the batch size is unknown.

    >>> config = completed(
    ...     {"gradient_accumulation_steps": 2},
    ...     precision=Precision.FP32,
    ...     batch_size=8,
    ...     microbatch_size=None,
    ...     world_size=4,
    ...     clipping=1.0,
    ... )
    >>> config["train_batch_size"], config["train_micro_batch_size_per_gpu"], config["gradient_clipping"]
    (32, 4, 1.0)
    """
    config = copy.deepcopy(dict(config))
    config.update(_batch_sizes(config, batch_size, microbatch_size, world_size))
    for name, lower in _LOW_PRECISION.items():
        if precision is lower and not autocasts(config):
            config.setdefault(name, {})["enabled"] = True
    if clipping is not None:
        _agree("gradient_clipping", config.get("gradient_clipping"), clipping, "the threshold of GradientClipping")
        config["gradient_clipping"] = clipping
    config.setdefault("gradient_clipping", 0.0)  # DeepSpeed's default is 1.0
    # Accept any optimizer of the user, also if DeepSpeed has a faster one for the CPU.
    config["zero_allow_untested_optimizer"] = True
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


def _batch_sizes(config: Mapping[str, Any], size: int | None, micro: int | None, world_size: int) -> dict[str, int]:
    """Return the batch size, the microbatch size and the number of gradient accumulation steps."""
    total, configured_micro, steps = (
        _count(config, name)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if total is not None and total % world_size:
        raise ValueError(
            f"deepspeed_config: train_batch_size={total} is not divisible by the world size, {world_size}."
        )
    if size is None and total is not None:
        size = total // world_size
    elif size is None and configured_micro is not None:
        size = configured_micro * (steps or 1)
    if size is None:
        raise ValueError(
            "deepspeed_config needs 'train_batch_size', the number of samples per step on all ranks together, since "
            "the batch_size of the train_dataloader is unknown."
        )
    _agree("train_batch_size", total, size * world_size, f"batch_size={size} of the data times {world_size} ranks")
    if micro is None:
        micro = configured_micro if configured_micro is not None else size if steps is None else -(-size // steps)
    micro = min(micro, size)
    _agree("train_micro_batch_size_per_gpu", configured_micro, micro, "device_train_microbatch_size")
    needed = -(-size // micro)
    _agree("gradient_accumulation_steps", steps, needed, f"{size} samples per rank in microbatches of {micro}")
    # DeepSpeed requires an exact product, while our last microbatch may be smaller; it only prints these numbers.
    return {
        "train_batch_size": micro * needed * world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": needed,
    }


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    number = as_integer(value)
    if value is not None and (number is None or number < 1):
        raise ValueError(f"deepspeed_config: {name} must be a positive integer; got {value!r}.")
    return number


def _agree(name: str, stated: float | None, found: float, source: str) -> None:
    if stated is not None and stated != found:
        raise ValueError(
            f"deepspeed_config has {name}={stated}, but the Trainer's value is {found}: {source}. Leave it out of "
            f"deepspeed_config, or set both to the same value."
        )


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy without the entries "auto"."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            kept[name] = _without_auto(cast("Mapping[str, Any]", value))
        elif value != "auto":
            kept[name] = copy.deepcopy(value)
    return kept
