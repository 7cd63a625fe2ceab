"""Settings of CheckpointSaver that can be changed after it is created."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from composer._numbers import non_negative
from composer.callbacks._checkpoint_names import in_folder, remote
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.checkpoint.retention import retention_of
from composer.core.interval import IntervalSchedule, create_interval_scheduler
from composer.core.metric_names import check_monitor
from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from composer.checkpoint.retention import Retention
    from composer.checkpoint.saved_checkpoints import SavedList
    from composer.core.file_names import PartialFilePath

__all__ = ["SaverSettings", "save_schedule"]

_RETENTION: Final = ("num_checkpoints_to_keep", "keep_best", "keep_every", "monitor", "mode")
_FIXED: Final = ("folder", "filename", "asynchronous", "on_failure")


class SaverSettings:
    """Settings that take effect whenever they are set, or cannot be changed later.

    >>> from composer.callbacks import CheckpointSaver
    >>> saver = CheckpointSaver("runs")
    >>> saver.num_checkpoints_to_keep = 1
    >>> saver.folder = "other"
    Traceback (most recent call last):
    AttributeError: CheckpointSaver.folder cannot be changed after creation. Create a CheckpointSaver with it, ...
    """

    writes_output = True
    folder: str
    filename: PartialFilePath
    monitor: str | None
    _list: SavedList
    _infers_mode: bool
    _upload_timeout: float
    _store: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if "_writer" in vars(self):  # after __init__
            value = self._apply_setting(name, value)
        super().__setattr__(name, value)

    def _apply_setting(self, name: str, value: Any) -> Any:
        """Apply a changed setting, and return its normalized value."""
        if name in _FIXED:
            raise AttributeError(
                f"CheckpointSaver.{name} cannot be changed after creation. Create a CheckpointSaver with it, or pass "
                f"it to the Trainer."
            )
        if name in _RETENTION:
            value = check_monitor(value) if name == "monitor" and value is not None else value
            self._list.retention = self._retention({name: value})
            if name in ("monitor", "mode"):
                mode, monitor = (value, self.monitor) if name == "mode" else (None, value)
                self._infers_mode = mode is None and monitor is not None
        elif name == "upload_timeout_in_seconds":
            self._upload_timeout = non_negative(name, value)
            if isinstance(self._store, RemoteCheckpoints):
                self._store.set_timeout(value)
        elif name == "save_interval" and not callable(value):
            return save_schedule(value)
        elif name == "latest_filename" and isinstance(value, (str, Path)):
            return in_folder(name, value, self.folder) if os.fspath(value) else None
        elif name in ("remote_file_name", "latest_remote_file_name") and isinstance(value, (str, Path)):
            return remote(name, os.fspath(value))
        return value

    def _retention(self, changed: dict[str, Any]) -> Retention:
        now = self._list.retention
        present: dict[str, Any] = {
            "num_checkpoints_to_keep": now.newest,
            "keep_best": now.best,
            "keep_every": now.every,
            "mode": now.mode,
            "monitor": self.monitor,
        }
        new = {**present, **changed}
        return retention_of(
            new["num_checkpoints_to_keep"], new["keep_best"], new["keep_every"], new["mode"] or "min", new["monitor"]
        )


def save_schedule(save_interval: Time | str | int) -> IntervalSchedule:
    """Return the function that is true if a checkpoint is due.

    Args:
        save_interval: A time, a time string, or a number of epochs.

    >>> save_schedule("500ba").interval
    Time(500, TimeUnit.BATCH)
    """
    return create_interval_scheduler(ensure_time(save_interval, TimeUnit.EPOCH, "save_interval"))
