"""Paths and uploads of the CUDA memory files that MemorySnapshot and OOMObserver write."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

from composer.core.name_placeholders import check_inside, check_remote_name, check_template, format_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["TraceFiles"]

_COUNTS: Final = ("epoch", "batch", "sample", "token", "iteration")


class TraceFiles:
    """Paths of files that differ only by their endings, built from templates.

    Args:
        folder: Local folder; a template with the run name and the rank.
        filename: Name of the files without ending; a template that may also contain the training time.
        remote_file_name: Folder at the loggers that store files, a template like ``filename``; None does not upload.
        overwrite: Whether to replace existing files.

    Raises:
        ValueError: A template has an unknown placeholder.

    >>> TraceFiles("{run_name}", "rank{rank}.{batch}", None, False).overwrite
    False
    """

    def __init__(self, folder: str, filename: str, remote_file_name: str | None, overwrite: bool) -> None:
        self.folder = check_template("folder", folder)
        self.filename = check_inside("filename", check_template("filename", filename, timed=True))
        if remote_file_name is not None:
            template = check_template("remote_file_name", remote_file_name, timed=True)
            remote_file_name = check_remote_name("remote_file_name", template)
        self.remote_file_name = remote_file_name
        self.overwrite = overwrite
        self._uploaded: set[str] = set()

    def raise_if_existing(self, state: State, endings: Iterable[str]) -> None:
        """Raise, before training, if files of an earlier run would be overwritten.

        Args:
            state: The state of the run.
            endings: The endings of the files to be written.

        Raises:
            FileExistsError: A file exists that may have the same name, and ``overwrite`` is False.
        """
        if self.overwrite:
            return
        folder = Path(format_name(self.folder, state.run_name))
        anytime = dict.fromkeys((*_COUNTS, *(f"{name}_in_epoch" for name in ("batch", "sample", "token"))), "*")
        # The name of the run may contain glob characters.
        pattern = format_name(self.filename, glob.escape(state.run_name), state.timestamp, **anytime)
        for ending in endings:
            found = next(folder.glob(f"{pattern}{ending}"), None)
            if found is not None:
                raise FileExistsError(
                    f"{found} exists from an earlier run. Remove it, choose another folder or filename, or set "
                    f"overwrite=True."
                )

    def path(self, state: State, ending: str) -> Path:
        """Return the path of a file at the current time, and create its folder.

        Args:
            state: The state of the run.
            ending: The ending of the file.
        """
        folder = Path(format_name(self.folder, state.run_name))
        path = folder / f"{format_name(self.filename, state.run_name, state.timestamp)}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def upload(self, state: State, logger: Logger, paths: Iterable[Path]) -> None:
        """Upload files to the loggers that store files.

        Args:
            state: The state of the run.
            logger: The logger.
            paths: The files.
        """
        if self.remote_file_name is None or not logger.has_file_upload_destination():
            return
        remote = format_name(self.remote_file_name, state.run_name, state.timestamp)
        for path in paths:
            name = f"{remote}/{path.name}"
            # Newer files replace those that this run uploaded.
            logger.upload_file(name, path, overwrite=self.overwrite or name in self._uploaded)
            self._uploaded.add(name)
