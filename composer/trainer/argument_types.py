"""Check the types of the Trainer's arguments before any of them takes effect: a table with one check per argument."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final, cast

import torch

from composer._numbers import as_integer, real_number, whole_number
from composer._text import did_you_mean, one_of
from composer.core._state_progress import as_duration
from composer.core.time import TimeUnit, ensure_time
from composer.parallel.config import FSDPConfig
from composer.rng import MAX_SEED
from composer.trainer.arguments import as_subset

__all__ = ["check_arguments"]


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise if a value has a type that its argument does not accept; the error names both and the expected type.

    Checks only types, and values that are invalid regardless of other arguments. Arguments that are not in the table
    are checked where they are used.

    Args:
        arguments: Arguments of :class:`.Trainer`, ``fit``, ``eval``, ``predict``, ``save_checkpoint`` or ``find_lr``,
            by name.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is invalid.

    >>> check_arguments({"seed": "a"})
    Traceback (most recent call last):
    TypeError: seed must be an integer; got 'a'.
    """
    for name, value in arguments.items():
        check = _CHECKS.get(name)
        if check is not None:
            check(name, value)


def _flag(name: str, value: Any) -> None:
    """Accept None as False, as 0.32 does, but not strings: "false" would be truthy."""
    # NumPy's booleans are not subclasses of bool.
    if not (value is None or type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1))):
        raise TypeError(f"{name} must be True or False; got {value!r}.")


def _integer(name: str, value: Any) -> int:
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{name} must be an integer; got {value!r}.")
    return number


def _seed(name: str, value: Any) -> None:
    if value is not None and not 0 <= _integer(name, value) <= MAX_SEED:
        raise ValueError(f"{name} must be from 0 to {MAX_SEED}; got {value!r}.")


def _count(name: str, value: Any) -> None:
    whole_number(name, value, minimum=None)


def _kept(name: str, value: Any) -> None:
    if whole_number(name, value, minimum=None) < -1:
        raise ValueError(f"{name} must be 0 or more, or -1 for all checkpoints; got {value!r}.")


def _number(name: str, value: Any) -> None:
    if not math.isfinite(real_number(name, value)):
        raise ValueError(f"{name} must be finite; got {value!r}.")


def _positive(name: str, value: Any) -> None:
    _number(name, value)
    if not float(value) > 0:
        raise ValueError(f"{name} must be greater than 0; got {value!r}.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string; got {value!r}.")


def _label(name: str, value: Any) -> None:
    _text(name, value)
    if not value:
        raise ValueError(f"{name} must not be empty: it labels the data in metric names; got {value!r}.")


def _path(name: str, value: Any) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a string or a path; got {value!r}.")
    if not os.fspath(cast("str | os.PathLike[str]", value)):
        raise ValueError(f"{name} must not be empty; got {value!r}.")


def _positive_time(name: str, value: Any) -> None:
    if ensure_time(value, TimeUnit.EPOCH, name).value <= 0:
        raise ValueError(f"{name} must be greater than 0; got {value!r}.")


def _interval(name: str, value: Any) -> None:
    if isinstance(value, type):
        raise TypeError(f"{name}: got the class {value.__name__}; give a time such as '1ep', or a function.")
    if not callable(value):
        if value is None:
            raise TypeError(f"{name} must be a time such as '1ep', or 0 for never; got None.")
        ensure_time(value, TimeUnit.EPOCH, name)


def _mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of arguments, or {{}} for the defaults; got {value!r}.")


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


# The arguments of torch.compile of which torch complains late, without their name, or not at all.
_COMPILE: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "backend": (
        "the name of a backend, such as 'inductor', or a function",
        lambda value: value is None or isinstance(value, str) or callable(value),
    ),
    "mode": ("a string such as 'max-autotune'", lambda value: isinstance(value, str | None)),
    "options": ("a mapping", lambda value: isinstance(value, Mapping | None)),
    "dynamic": ("True, False or None", lambda value: value is None or _is_switch(value)),
    "fullgraph": ("True or False", _is_switch),
    "disable": ("True or False", _is_switch),
}


def _compile(name: str, value: Any) -> None:
    _mapping(name, value)
    known = [*(one for one in inspect.signature(torch.compile).parameters if one != "model"), "regional"]
    for key, given in cast("Mapping[Any, Any]", value).items():
        if key == "model":
            raise ValueError(f"{name}: the trainer passes its model to torch.compile itself; leave 'model' out.")
        if key not in known:
            raise ValueError(f"{name}: torch.compile has no argument {key!r}.{did_you_mean(str(key), known)}")
        expected, is_one = _COMPILE.get(key, ("", lambda _: True))
        if not is_one(given):
            raise TypeError(f"{name}: {key} must be {expected}; got {given!r}.")
    regional = cast("Mapping[str, Any]", value).get("regional", False)
    if not isinstance(regional, bool):
        raise ValueError(
            f"{name}: regional must be True, to compile the repeated blocks of the model, or False, to compile the "
            f"full model; got {regional!r}."
        )


def _fsdp(name: str, value: Any) -> None:
    if not isinstance(value, FSDPConfig):
        _mapping(name, value)


def _names(name: str, value: Any) -> None:
    entries = cast("Sequence[Any]", value)
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of strings; got {value!r}. Pass [{value!r}].")
    if not isinstance(value, (Sequence, Set)) or not all(isinstance(one, str) for one in entries):
        raise TypeError(f"{name} must be a list of strings; got {value!r}.")


def _keys(name: str, value: Any) -> None:
    if isinstance(value, type) or not callable(value):
        _names(f"{name}, unless it is a function,", value)


def _stream(name: str, value: Any) -> None:
    if isinstance(value, str):
        one_of(name, value, ("stdout", "stderr"))
    elif not callable(getattr(value, "write", None)):
        raise TypeError(f"{name} must be 'stdout', 'stderr' or an open text file; got {value!r}.")


def _failure(name: str, value: Any) -> None:
    one_of(name, value, ("raise", "warn"))


def _or_none(check: Callable[[str, Any], object]) -> Callable[[str, Any], object]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    **dict.fromkeys(
        (
            "spin_dataloaders", "step_schedulers_every_batch", "progress_bar", "log_to_console", "log_traces",
            "auto_log_hparams", "load_weights_only", "load_strict_model_weights", "load_progress_bar",
            "save_overwrite", "save_weights_only", "save_metrics", "autoresume", "accumulate_train_batch_on_tokens",
            "deterministic_mode", "find_unused_parameters", "dry_run", "save_async", "save_on_exception", "reset_time",
            "return_outputs", "weights_only",
        ),
        _flag,
    ),
    **dict.fromkeys(("train_dataloader_label",), _label),
    **dict.fromkeys(("train_subset_num_batches", "eval_subset_num_batches"), as_subset),
    **dict.fromkeys(("eval_interval", "save_interval"), _interval),
    **dict.fromkeys(("load_path", "save_folder", "save_latest_filename"), _or_none(_path)),
    **dict.fromkeys(("save_filename", "name"), _path),
    **dict.fromkeys(("min_lr", "max_lr", "stop_factor"), _number),
    **dict.fromkeys(("precision_config", "deepspeed_config"), _or_none(_mapping)),
    **dict.fromkeys(("load_ignore_keys", "save_ignore_keys"), _or_none(_keys)),
    "compile_config": _or_none(_compile),
    "console_log_interval": _positive_time,
    "console_stream": _stream,
    "dist_timeout": _positive,
    "fsdp_config": _or_none(_fsdp),
    "max_duration": _or_none(as_duration),
    "load_exclude_algorithms": _or_none(_names),
    "num_batches": _count,
    "python_log_level": _or_none(_text),
    "run_name": _or_none(_text),
    "save_failure": _failure,
    "save_num_checkpoints_to_keep": _kept,
    "save_on_signals": _names,
    "seed": _seed,
}  # fmt: skip
