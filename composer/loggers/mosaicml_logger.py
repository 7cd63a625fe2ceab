"""MosaicMLLogger: a stand-in for the logger of MosaicML's platform, so that scripts run; it logs nothing."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from composer._numbers import whole_number
from composer.core.logger import LoggerDestination

__all__ = [
    "MOSAICML_ACCESS_TOKEN_ENV_VAR",
    "MOSAICML_GPU_LOG_FILE_PREFIX_ENV_VAR",
    "MOSAICML_LOG_DIR_ENV_VAR",
    "MOSAICML_PLATFORM_ENV_VAR",
    "RUN_NAME_ENV_VAR",
    "MosaicMLLogger",
    "dict_to_str",
    "exception_to_json_serializable_dict",
    "format_data_to_json_serializable",
]

RUN_NAME_ENV_VAR: Final = "RUN_NAME"
MOSAICML_PLATFORM_ENV_VAR: Final = "MOSAICML_PLATFORM"
MOSAICML_ACCESS_TOKEN_ENV_VAR: Final = "MOSAICML_ACCESS_TOKEN_FILE"
MOSAICML_LOG_DIR_ENV_VAR: Final = "MOSAICML_LOG_DIR"
MOSAICML_GPU_LOG_FILE_PREFIX_ENV_VAR: Final = "MOSAICML_GPU_LOG_FILE_PREFIX"

_log = logging.getLogger(__name__)
_PLAIN: Final = (str, int, float, bool)


class MosaicMLLogger(LoggerDestination):
    """A stand-in for the logger of MosaicML's platform that logs nothing.

    The platform is not supported. The first instance in a process reports that in Python's ``logging``; metrics are
    neither stored nor read from the device for it. Use :class:`.JSONLinesLogger` or an experiment tracker instead.

    Args:
        log_interval: Ignored.
        ignore_keys: Ignored.
        ignore_exceptions: Ignored.

    Attributes:
        run_name: Name of the platform's run, from the environment variable ``RUN_NAME``.
        buffered_metadata: Always empty.

    >>> logger = MosaicMLLogger()
    >>> logger.log_metrics({"loss": 0.5})
    >>> logger.buffered_metadata
    {}
    """

    def __init__(
        self, log_interval: int = 60, ignore_keys: Sequence[str] | None = None, ignore_exceptions: bool = True
    ) -> None:
        self.log_interval = whole_number("log_interval", log_interval, minimum=None)
        self.ignore_keys = ignore_keys
        self.ignore_exceptions = ignore_exceptions
        self.run_name = os.environ.get(RUN_NAME_ENV_VAR)
        self.buffered_metadata: dict[str, Any] = {}
        self.time_last_logged = 0
        self.train_dataloader_len: int | None = None
        self._enabled = False
        _report_once()

    @property
    def __logs_here__(self) -> bool:
        """False: metrics are not needed on any rank."""
        return False

    def log_metadata(self, metadata: Mapping[str, Any], force_flush: bool = False) -> None:
        """Do nothing.

        Args:
            metadata: Values by name.
            force_flush: Ignored.
        """

    def _flush_metadata(self, force_flush: bool = False, future: bool = True) -> None:
        """Do nothing; called by published code."""


@functools.cache
def _report_once() -> None:
    _log.warning(
        "MosaicMLLogger logs nothing: MosaicML's platform is not supported. JSONLinesLogger keeps metrics in a file."
    )


def format_data_to_json_serializable(data: Any) -> Any:
    """Convert a logged value to JSON-serializable data; tensors with several elements become their shape as text.

    Args:
        data: Any value.

    >>> import torch
    >>> format_data_to_json_serializable({"a": torch.tensor([42]), "b": (None, torch.zeros(3))})
    {'a': 42, 'b': ['None', 'Tensor of shape torch.Size([3])']}
    """
    if type(data) in _PLAIN:
        return data
    if isinstance(data, Tensor):
        return data.item() if data.numel() == 1 else f"Tensor of shape {data.shape}"
    if isinstance(data, Mapping):
        return {
            format_data_to_json_serializable(key): format_data_to_json_serializable(value)
            for key, value in data.items()
        }
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return [format_data_to_json_serializable(value) for value in data]
    return str(data)


def exception_to_json_serializable_dict(exc: Exception) -> dict[str, Any]:
    """Return an exception as a dictionary: its class, its message and its custom attributes.

    Args:
        exc: The exception.

    >>> exception_to_json_serializable_dict(ValueError("wrong"))
    {'class': 'ValueError', 'message': 'wrong', 'attributes': {}}
    """
    attributes: dict[str, Any] = {}
    for name in sorted(set(dir(exc)) - set(dir(Exception()))):
        value = getattr(exc, name, None)
        if not name.startswith("__") and hasattr(exc, name) and not callable(value):
            attributes[name] = value if value is None or isinstance(value, (*_PLAIN, list, dict)) else str(value)
    return {"class": type(exc).__name__, "message": str(exc), "attributes": attributes}


def dict_to_str(data: Mapping[str, Any]) -> str:
    """Format values by name as indented lines.

    Args:
        data: The values.

    >>> dict_to_str({"a": 1})
    '\\ta: 1'
    """
    return "\n".join(f"\t{name}: {value}" for name, value in data.items())
