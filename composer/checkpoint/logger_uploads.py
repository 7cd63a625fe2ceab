"""Upload checkpoints to loggers that store files, each with a ``.symlink`` text file that names the newest."""

from __future__ import annotations

import posixpath
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from composer.checkpoint.latest_symlink import create_symlink_file
from composer.storage.downloads import LINK_SUFFIX

if TYPE_CHECKING:
    from composer.core.logger import Logger

__all__ = ["upload_copy"]


def upload_copy(logger: Logger, path: Path, name: str | None, latest: str | None) -> None:
    """Upload a checkpoint, and then a text file that names it, to the destinations that store files.

    Args:
        logger: The logger with the destinations.
        path: The checkpoint.
        name: Its remote name; None uploads nothing.
        latest: Name of the link, to which ``.symlink`` is appended; None uploads no link.

    >>> from composer import Logger, State
    >>> upload_copy(Logger(State(torch.nn.Linear(1, 1))), tmp_path / "ep1.pt", None, None)
    """
    if name is None:
        return
    logger.upload_file(name, path, overwrite=True)
    if latest is not None:
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            text = Path(folder, f"{Path(latest).name}{LINK_SUFFIX}")
            create_symlink_file(posixpath.relpath(name, posixpath.dirname(latest) or "."), text)
            logger.upload_file(f"{latest}{LINK_SUFFIX}", text, overwrite=True)
