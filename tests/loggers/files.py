"""Runs of loggers that write to a folder, shared by their tests."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from composer.core import LoggerDestination
from tests.loggers.loop import Loop


class Uploads(LoggerDestination):
    """Stores the text of each uploaded file, by name."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        assert overwrite
        self.texts[remote_file_name] = file_path.read_bytes().decode(errors="replace")


def in_own_folder(make: Callable[[str], Any]) -> Callable[[], Any]:
    """Make loggers that write to separate temporary folders, which are removed with them."""

    def make_one() -> Any:
        folder = tempfile.TemporaryDirectory()
        logger = make(folder.name)
        weakref.finalize(logger, folder.cleanup)
        return logger

    return make_one


def run(logger: LoggerDestination, *others: LoggerDestination, **options: Any) -> Loop:
    """Train for two epochs of four batches, and evaluate after each."""
    loop = Loop([logger, *others], **options).init()
    loop.fire("after_load")
    return loop.fit()


def resumed(make: Callable[[], LoggerDestination], stop: int, crash: int) -> None:
    """Train for ``crash`` of eight batches without closing, resume at batch ``stop`` and train to the end."""
    torn = make()
    loop = Loop([torn], f"{stop}ba").init()
    loop.fire("after_load")
    loop.fit()
    saved, timestamp = json.loads(json.dumps(torn.state_dict())), loop.state.timestamp
    if crash > stop:
        loop.state.max_duration = f"{crash}ba"
        loop.fit()
    torn.__suspend__()

    logger = make()
    other = Loop([logger], "8ba").init()
    logger.load_state_dict(saved)
    other.state.timestamp = timestamp
    other.fire("after_load")
    other.fit().close()
    loop.engine._finalizer.detach()  # a process that is killed closes nothing
