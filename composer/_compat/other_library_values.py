"""Hints for arguments of other libraries that depend on the given value, such as ``limit_train_batches=0.1``.

Each function takes the value and the number of training batches, or None if unknown, and returns "" if the general
hint in ``other_libraries`` applies.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from composer._numbers import as_integer

__all__ = ["answer_to"]


def answer_to(name: str, value: object, batches: int | None = None) -> str:
    """Return what to use instead of an argument with this value, or "" if the general hint applies.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        batches: Number of training batches, if known.

    >>> answer_to("limit_train_batches", 0.1, batches=200), answer_to("mixed_precision", "bf16")
    ('train_subset_num_batches=20', "precision='amp_bf16'")
    """
    if not isinstance(value, (bool, float, str, list, Mapping, datetime.timedelta, type(None))):
        value = as_integer(value)
        if value is None:  # an object of another library
            return ""
    if isinstance(value, list) and not all(isinstance(one, (str, int)) for one in cast("list[Any]", value)):
        return ""
    return _BY_VALUE[name](value, batches) if name in _BY_VALUE else ""


_DEFAULT: Final = "the default: omit this argument"
_WARMUP: Final = "schedulers=composer.optim.LinearWithWarmupScheduler(t_warmup={!r})"
_SCHEDULES: Final = {
    "linear": "LinearWithWarmupScheduler(t_warmup='0ba')",
    "cosine": "CosineAnnealingWithWarmupScheduler(t_warmup='0ba')",
    "cosine_with_restarts": "CosineAnnealingWarmRestartsScheduler(t_0='0.25dur')",
    "polynomial": "PolynomialWithWarmupScheduler(t_warmup='0ba')",
    "constant": "ConstantScheduler()",
    "constant_with_warmup": "ConstantWithWarmupScheduler(t_warmup='100ba')",
    "inverse_sqrt": "InverseSquareRootScheduler(t_warmup='100ba')",
    "step": "StepScheduler(step_size='1ep')",
    "exponential": "ExponentialScheduler(gamma=0.9)",
    "warmup_stable_decay": "WarmupStableDecayScheduler(t_warmup='100ba')",
    "reduce_lr_on_plateau": "ReduceOnPlateauScheduler(monitor='eval/<metric>')",
}
_OPTIMIZERS: Final = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
_LOGGERS: Final = {
    "wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow", "comet_ml": "comet", "comet": "comet",
    "neptune": "neptune", "trackio": "trackio", "csv": "csv",
}  # fmt: skip
_PRECISIONS: Final = {"bf16": "amp_bf16", "fp16": "amp_fp16", "fp8": "amp_fp8", "no": "fp32"}


def _fraction(value: Any) -> float | None:
    """Return a value that is a fraction between 0 and 1, or None for a count."""
    return float(value) if isinstance(value, float) and 0 < value < 1 else None


def _interval(value: Any, batches: int | None) -> str:
    fraction = _fraction(value)
    if fraction is not None and batches is None:
        return f"eval_interval=f'{{int({fraction} * len(train_dataloader))}}ba'"
    if fraction is not None:
        return f"eval_interval='{max(1, int(fraction * cast(int, batches)))}ba'"
    return "eval_interval='1ep'" if value == 1.0 and isinstance(value, float) else ""


def _limit_batches(mode: str) -> Callable[[Any, int | None], str]:
    def hint(value: Any, batches: int | None) -> str:
        fraction = _fraction(value)
        if isinstance(value, float) and value == 1.0:
            return _DEFAULT
        if value == 0:
            return f"{mode}_dataloader=None" if mode == "eval" else ""
        if fraction is None:
            return ""
        if mode == "train" and batches is not None:
            return f"train_subset_num_batches={max(1, int(fraction * batches))}"
        return f"{mode}_subset_num_batches=int({fraction} * len({mode}_dataloader))"

    return hint


def _steps(argument: str) -> Callable[[Any, int | None], str]:
    return lambda value, batches: "" if _fraction(value) is None else f"{argument}='{value}dur'"


def _loggers(value: Any, batches: int | None) -> str:
    if value in (None, False, True, "none", "all", []):
        return _DEFAULT
    names = [value] if isinstance(value, str) else cast("Sequence[Any]", value) if isinstance(value, list) else []
    found = [_LOGGERS.get(str(name).lower()) for name in names]
    if not found or None in found:
        return ""
    return f"loggers={found[0]!r}" if len(found) == 1 else f"loggers={found!r}"


def _schedule(value: Any, batches: int | None) -> str:
    name = str(getattr(value, "value", value)).lower() if value is not None else ""
    return f"schedulers=composer.optim.{_SCHEDULES[name]}" if name in _SCHEDULES else ""


def _optimizer(value: Any, batches: int | None) -> str:
    names = {name.lower(): name for name in _OPTIMIZERS}
    found = names.get(value.lower().removesuffix("_torch")) if isinstance(value, str) else None
    return "" if found is None else f"optimizers=torch.optim.{found}(model.parameters(), lr=...)"


def _warmup(unit: str) -> Callable[[Any, int | None], str]:
    return lambda value, batches: (
        _WARMUP.format(f"{value}{unit}") if type(value) is (float if unit == "dur" else int) else ""
    )


def _time(value: Any, batches: int | None) -> str:
    """Convert Lightning's "DD:HH:MM:SS", a timedelta, or a dict of its arguments."""
    if isinstance(value, Mapping):
        try:
            value = datetime.timedelta(**cast("dict[str, Any]", value))
        except TypeError:
            return ""
    if isinstance(value, str):
        parts = value.split(":")
        if not 3 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
            return ""
        seconds = sum(int(part) * unit for part, unit in zip(reversed(parts), (1, 60, 3600, 86400), strict=False))
        value = datetime.timedelta(seconds=seconds)
    if not isinstance(value, datetime.timedelta) or value <= datetime.timedelta():
        return ""
    minutes, seconds = divmod(int(value.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    shown = "".join(f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (seconds, "s")) if n)
    return f"max_duration={shown!r}"


def _accelerator(value: Any, batches: int | None) -> str:
    name = str(value).lower()
    if name in ("auto", "none"):
        return _DEFAULT
    return {"cpu": "device='cpu'", "mps": "device='mps'", "tpu": "device='tpu'"}.get(
        name, "device='gpu'" if name in ("gpu", "cuda") else ""
    )


def _devices(value: Any, batches: int | None) -> str:
    if value in (1, "1", "auto", None, [0]):
        return _DEFAULT
    if value == 0:
        return "device='cpu'"
    count = len(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else value
    return f"the launcher: composer -n {count} train.py" if type(count) is int and count > 1 else ""


def _precision(value: Any, batches: int | None) -> str:
    return f"precision={_PRECISIONS[value]!r}" if isinstance(value, str) and value in _PRECISIONS else ""


def _strategy(argument: str, disabling_argument: str) -> Callable[[Any, int | None], str]:
    choices = {"epoch": f"{argument}='1ep'", "steps": f"{argument}='500ba'", "no": f"{disabling_argument}=None"}
    return lambda value, batches: choices.get(str(getattr(value, "value", value)).lower(), "")


def _off(value: Any, batches: int | None) -> str:
    """Handle a flag that is off, which is the default."""
    return _DEFAULT if value is False or value is None else ""


def _shown(value: Any, batches: int | None) -> str:
    return "progress_bar=False" if value in (False, 0, None, "0") else _DEFAULT


def _hidden(value: Any, batches: int | None) -> str:
    return "progress_bar=False" if value else _DEFAULT


_BY_VALUE: Final[Mapping[str, Callable[[Any, int | None], str]]] = {
    "val_check_interval": _interval,
    "limit_train_batches": _limit_batches("train"),
    "limit_val_batches": _limit_batches("eval"),
    "eval_steps": _steps("eval_interval"),
    "save_steps": _steps("save_interval"),
    **dict.fromkeys(("report_to", "log_with", "logger"), _loggers),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler", "sched"), _schedule),
    **dict.fromkeys(("optimizer", "optim", "opt"), _optimizer),
    "warmup_steps": _warmup("ba"),
    "warmup_ratio": _warmup("dur"),
    "max_time": _time,
    "accelerator": _accelerator,
    **dict.fromkeys(("devices", "gpus", "num_gpus", "num_processes", "num_nodes"), _devices),
    "mixed_precision": _precision,
    "eval_strategy": _strategy("eval_interval", "eval_dataloader"),
    "evaluation_strategy": _strategy("eval_interval", "eval_dataloader"),
    "save_strategy": _strategy("save_interval", "save_folder"),
    **dict.fromkeys(("verbose", "enable_progress_bar"), _shown),
    "disable_tqdm": _hidden,
    **dict.fromkeys(
        (
            "amp", "auto_find_batch_size", "auto_lr_find", "auto_scale_batch_size", "benchmark", "bf16", "compile",
            "cpu", "detect_anomaly", "early_stopping", "ema", "eval_on_start", "fast_dev_run", "fp16",
            "gradient_checkpointing", "group_by_length", "jit_compile",
            "load_best_model_at_end", "no_cuda", "sync_batchnorm", "terminate_on_nan", "torch_compile", "use_amp",
            "use_cpu", "wandb",
        ),
        _off,
    ),
}  # fmt: skip
