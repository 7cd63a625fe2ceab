"""What DeepSpeed is told: the user's configuration, and what follows from the arguments of the trainer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from composer.precision import Precision

__all__ = ["autocasts", "checked", "completed", "precision_of", "stage_of"]

_LOWER: Mapping[str, Precision] = {"fp16": Precision.AMP_FP16, "bf16": Precision.AMP_BF16}
_AUTOCAST: Mapping[str, Precision] = {
    "float16": Precision.AMP_FP16,
    "fp16": Precision.AMP_FP16,
    "bfloat16": Precision.AMP_BF16,
    "bf16": Precision.AMP_BF16,
}
_NOT_HERE: Mapping[str, str] = {
    "optimizer": "Give the optimizer to the Trainer: optimizers=...",
    "scheduler": "Give the schedule to the Trainer: schedulers=...",
    "amp": "It is the mixed precision of Apex; give 'bf16' or 'fp16'.",
    "pipeline": "Parallel pipelines need a model that is made for them.",
    "curriculum_learning": "It edits batches; SeqLengthWarmup does so here.",
    "data_efficiency": "It draws the data; give the Trainer a train_dataloader that does.",
}


def checked(config: Any) -> dict[str, Any]:
    """Return a copy of a configuration without the entries that leave the choice to us, which are ``"auto"``.

    Args:
        config: As the user gave it.

    Raises:
        TypeError: It is no dictionary.
        ValueError: It has a section for which there is an argument of the trainer.

    >>> checked(
    ...     {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    ... )
    {'zero_optimization': {'stage': 2}}
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"deepspeed_config must be a dictionary, as json.load() returns it for a file; got {config!r}.")
    config = cast("Mapping[str, Any]", config)
    for section, remedy in _NOT_HERE.items():
        if config.get(section):
            raise ValueError(f"deepspeed_config has the section {section!r}, which is not DeepSpeed's here. {remedy}")
    return _without_auto(config)


def stage_of(config: Mapping[str, Any]) -> int:
    """Return the stage of ZeRO, that is, what is divided: 1 optimizer states, 2 gradients too, 3 weights too.

    Args:
        config: As :func:`checked` returns it.

    Raises:
        ValueError: There is no such stage.

    >>> stage_of({}), stage_of({"zero_optimization": {"stage": 3}})
    (0, 3)
    """
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ValueError(f"deepspeed_config: the stage in 'zero_optimization' must be 0, 1, 2 or 3; got {stage!r}.")
    return stage


def autocasts(config: Mapping[str, Any]) -> bool:
    """Return whether weights stay in float32 and operations choose their format, as without DeepSpeed.

    Args:
        config: As :func:`checked` returns it.

    >>> (
    ...     autocasts({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    ...     autocasts({"bf16": {"enabled": True}}),
    ... )
    (True, False)
    """
    return bool(config.get("torch_autocast", {}).get("enabled", False))


def precision_of(config: Mapping[str, Any], asked: Precision | None) -> Precision | None:
    """Return the precision that a configuration and an argument agree on; None where neither says.

    Args:
        config: As :func:`checked` returns it.
        asked: The argument.

    Raises:
        ValueError: They do not agree, or DeepSpeed has no such precision.

    >>> precision_of({"bf16": {"enabled": True}}, None)
    <Precision.AMP_BF16: 'amp_bf16'>
    """
    if asked is Precision.AMP_FP8:
        raise ValueError("precision='amp_fp8' is not available with deepspeed_config; use 'amp_bf16'.")
    stated = {name: config[name].get("enabled") for name in _LOWER if "enabled" in config.get(name, {})}
    wanted = {name: precision for name, precision in _LOWER.items() if stated.get(name)}
    if autocasts(config):
        dtype = config["torch_autocast"].get("dtype", "bfloat16")
        if dtype not in _AUTOCAST:
            raise ValueError(f"deepspeed_config: 'torch_autocast' has bfloat16 and float16, not {dtype!r}.")
        wanted["torch_autocast"] = _AUTOCAST[dtype]
    if len(wanted) > 1:
        raise ValueError(f"deepspeed_config enables {' and '.join(map(repr, wanted))} at once; leave one of them.")
    for name, precision in wanted.items():
        if asked is not None and asked is not precision:
            raise ValueError(
                f"precision={asked.value!r}, but deepspeed_config enables {name!r}, which is {precision.value!r}; "
                f"leave one of them out."
            )
        return precision
    for name, precision in _LOWER.items():
        if asked is precision and stated.get(name) is False:
            raise ValueError(
                f"precision={precision.value!r}, but deepspeed_config has {name!r} with enabled=False; leave one of "
                f"them out."
            )
    return Precision.FP32 if asked is None and False in stated.values() else asked


def completed(
    config: Mapping[str, Any],
    *,
    precision: Precision,
    batch_size: int | None,
    microbatch_size: int | None,
    world_size: int,
    clipping: float | None,
) -> dict[str, Any]:
    """Return a configuration with all that follows from the arguments of the trainer.

    Args:
        config: As :func:`checked` returns it.
        precision: What :func:`precision_of` and the device say.
        batch_size: Number of samples of a batch of one process, if the data tells.
        microbatch_size: Number of samples that go through the model at once; None is the whole batch.
        world_size: Number of processes.
        clipping: Bound of the gradient norm, from :class:`.GradientClipping`; None where that is not in use.

    Raises:
        ValueError: The configuration contradicts the arguments, or says nothing of the batch where the data does not.

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
    config.update(_batch(config, batch_size, microbatch_size, world_size))
    for name, lower in _LOWER.items():
        if precision is lower and not autocasts(config):
            config.setdefault(name, {})["enabled"] = True
    if clipping is not None:
        _agree("gradient_clipping", config.get("gradient_clipping"), clipping, "the threshold of GradientClipping")
        config["gradient_clipping"] = clipping
    config.setdefault("gradient_clipping", 0.0)  # DeepSpeed's own default is 1.0
    # The optimizer is the user's, whichever that is, and also where DeepSpeed has a faster one for the host.
    config["zero_allow_untested_optimizer"] = True
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


def _batch(config: Mapping[str, Any], size: int | None, micro: int | None, world_size: int) -> dict[str, int]:
    """The three numbers that tell of the batch: all samples, those of a forward pass, and the number of passes."""
    total, part, steps = (
        _count(config, name)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if total is not None and total % world_size:
        raise ValueError(f"deepspeed_config: train_batch_size={total} cannot be divided among {world_size} processes.")
    if size is None:
        size = total // world_size if total is not None else part * (steps or 1) if part is not None else None
    if size is None:
        raise ValueError(
            "deepspeed_config needs 'train_batch_size', the number of samples of a step of all processes together, as "
            "there is no train_dataloader that tells its batch_size."
        )
    _agree("train_batch_size", total, size * world_size, f"batch_size={size} of the data times {world_size} processes")
    if micro is None:
        micro = part if part is not None else size if steps is None else -(-size // steps)
    micro = min(micro, size)
    _agree("train_micro_batch_size_per_gpu", part, micro, "device_train_microbatch_size")
    needed = -(-size // micro)
    _agree("gradient_accumulation_steps", steps, needed, f"{size} samples of a process in microbatches of {micro}")
    # DeepSpeed wants them to fit exactly, where our last microbatch may be smaller; it only prints by them.
    return {
        "train_batch_size": micro * needed * world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": needed,
    }


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"deepspeed_config: {name} must be a positive whole number; got {value!r}.")
    return value


def _agree(name: str, stated: float | None, found: float, source: str) -> None:
    if stated is not None and stated != found:
        raise ValueError(
            f"deepspeed_config has {name}={stated}, but it is {found} by the Trainer: {source}. Leave it out of "
            f"deepspeed_config, or make both the same."
        )


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy without the entries "auto"."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            kept[name] = _without_auto(cast("Mapping[str, Any]", value))
        elif value != "auto":
            kept[name] = copy.deepcopy(value)
    return kept
