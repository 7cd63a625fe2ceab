"""Format numbers, durations and hyperparameters as text, and resolve output streams."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TextIO

from torch import Tensor

from composer._text import one_of

__all__ = ["checked_stream", "clock", "config_block", "config_fields", "format_log_data_value", "open_stream"]


def format_log_data_value(data: Any) -> str:
    """Return a logged value as short text.

    Floats have four decimals, or four in scientific notation if fixed notation would hide the value. Tensors of one
    element are shown as that element, larger ones by their shape.

    Args:
        data: A number, string, tensor, None, or a mapping or sequence of these.

    >>> import torch
    >>> [format_log_data_value(x) for x in (3, 0.12345, 1e-5, torch.tensor([2.0]), torch.zeros(2, 3))]
    ['3', '0.1235', '1.0000e-05', '2.0000', 'Tensor of shape (2, 3)']
    """
    if isinstance(data, Tensor):
        return format_log_data_value(data.item()) if data.numel() == 1 else f"Tensor of shape {tuple(data.shape)}"
    if isinstance(data, Integral):
        return str(data)
    if isinstance(data, Real):
        number = float(data)
        plain = number == 0 or not math.isfinite(number) or 1e-3 <= abs(number) < 1e6
        return f"{number:.4f}" if plain else f"{number:.4e}"
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key}: {format_log_data_value(value)}" for key, value in data.items()) + "}"
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return "[" + ", ".join(map(format_log_data_value, data)) + "]"
    return str(data)


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``.

    Args:
        seconds: The duration, in seconds.

    >>> clock(75.4), clock(3600)
    ('1:15', '1:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def config_block(hyperparameters: Mapping[str, Any]) -> str:
    """Return hyperparameters as indented lines between two lines of stars.

    Args:
        hyperparameters: Values by name; mappings may be nested.

    >>> print(config_block({"lr": 0.1, "model": {"depth": 18}}))
    ******************************
    Config:
    lr: 0.1
    model:
      depth: 18
    ******************************
    """
    stars = "*" * 30
    return "\n".join([stars, "Config:", *_config_lines(hyperparameters, ""), stars])


def config_fields(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as the fields of one line, or as one :func:`config_block` if they are many or nested.

    Args:
        hyperparameters: Values by name.

    >>> config_fields({"rank_zero_seed": 17, "num_nodes": 1})
    ['config', 'rank_zero_seed=17', 'num_nodes=1']
    """
    fields = ["config", *(f"{name}={value}" for name, value in hyperparameters.items())]
    nested = any(isinstance(value, Mapping) for value in hyperparameters.values())
    long = len("  ".join(fields)) > 110 or any("\n" in field for field in fields)
    return [config_block(hyperparameters)] if nested or long else fields


def _config_lines(values: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{name}:", *_config_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value}".rstrip())
    return lines


def checked_stream(stream: str | TextIO) -> str | TextIO:
    """Validate ``stream``, and return sys.stdout and sys.stderr by name, so that later replacements are respected.

    Args:
        stream: "stdout", "stderr" or an open text file.

    Raises:
        TypeError: ``stream`` is not writable.
        ValueError: ``stream`` is an unknown name.

    >>> checked_stream("stdout")
    'stdout'
    """
    if isinstance(stream, str):
        return one_of("stream", stream, ("stdout", "stderr"))
    if not callable(getattr(stream, "write", None)):
        raise TypeError(f"stream must be 'stdout', 'stderr' or an open text file; got {stream!r}.")
    if stream is sys.stdout:
        return "stdout"
    return "stderr" if stream is sys.stderr else stream


def open_stream(stream: str | TextIO) -> TextIO:
    """Return the current file of a checked stream.

    Args:
        stream: The return value of :func:`checked_stream`.

    >>> open_stream("stdout").write("text")
    text4
    """
    if isinstance(stream, str):
        return sys.stdout if stream == "stdout" else sys.stderr
    return stream
