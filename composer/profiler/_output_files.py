"""Output files of a profiler, one per window: names, uploads, and how many to keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from composer import dist
from composer._numbers import whole_number
from composer.core.name_placeholders import (
    check_inside,
    check_remote_name,
    check_template,
    differs_by_rank,
    format_name,
)
from composer.core.run_files import set_aside

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["WindowFiles"]


class WindowFiles:
    """One file for each window of a profiler.

    A file of the same name from an earlier run is renamed from ``x.json`` to ``x.1.json``, unless ``overwrite`` is
    True.

    Args:
        folder: Local folder; may contain run placeholders such as ``{run_name}``.
        filename: File name, which may also contain time placeholders such as ``{batch}``.
        remote_file_name: Name at loggers that store files; None uploads nothing.
        overwrite: Whether to overwrite files of an earlier run.
        num_to_keep: Number of most recent files to keep; -1 keeps all, 0 only uploaded ones.
        prefix: Prefix of the argument names in error messages.

    Raises:
        ValueError: A template has an unknown placeholder, or the number is less than -1.

    >>> WindowFiles("{run_name}", "ba{batch}.json", None, False, num_to_keep=-2)
    Traceback (most recent call last):
    ValueError: num_traces_to_keep must be a number of files, or -1 for all; got -2.
    """

    def __init__(
        self,
        folder: str,
        filename: str,
        remote_file_name: str | None,
        overwrite: bool,
        num_to_keep: int = -1,
        prefix: str = "",
    ) -> None:
        self.folder = check_template("folder", folder)
        self.filename = check_inside(f"{prefix}filename", check_template(f"{prefix}filename", filename, timed=True))
        if remote_file_name is not None:
            template = check_template(f"{prefix}remote_file_name", remote_file_name, timed=True)
            remote_file_name = check_remote_name(f"{prefix}remote_file_name", template)
        num_to_keep = whole_number("num_traces_to_keep", num_to_keep, minimum=None)
        if num_to_keep < -1:
            raise ValueError(f"num_traces_to_keep must be a number of files, or -1 for all; got {num_to_keep!r}.")
        self.remote_file_name = remote_file_name
        self.overwrite = overwrite
        self.num_to_keep = num_to_keep
        self._kept: dict[Path, Timestamp] = {}
        self._uploaded: set[str] = set()

    def check(self, logger: Logger) -> None:
        """Raise, before training, if files would be lost.

        Args:
            logger: Uploads files to the loggers that store files.

        Raises:
            ValueError: Several ranks would write to the same file, or no file would be kept anywhere.
        """
        if dist.get_world_size() > 1 and not differs_by_rank(f"{self.folder}/{self.filename}"):
            raise ValueError(f"filename={self.filename!r} is the same on all ranks. Add {{rank}} to it.")
        if self.num_to_keep == 0 and not (self.remote_file_name and logger.has_file_upload_destination()):
            raise ValueError(
                "num_traces_to_keep=0 keeps no local trace, and no logger stores one. Use a larger number, or a logger "
                "that stores files and remote_file_name."
            )

    def new(self, state: State) -> Path:
        """Return the path for a new file, and create its folder.

        Args:
            state: The state of the run.
        """
        name = format_name(self.filename, state.run_name, state.timestamp)
        path = (Path(format_name(self.folder, state.run_name)) / name).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._kept.pop(path, None) is None and path.exists() and not self.overwrite:
            set_aside(path)
        self._kept[path] = state.timestamp  # moved to the end, even if training time was reset
        return path

    def upload(self, state: State, logger: Logger, path: Path) -> None:
        """Upload a file to the loggers that store files.

        Args:
            state: The state of the run.
            logger: The logger.
            path: The file.
        """
        if self.remote_file_name is not None and logger.has_file_upload_destination():
            name = format_name(self.remote_file_name, state.run_name, state.timestamp)
            logger.upload_file(name, path, overwrite=self.overwrite or name in self._uploaded)
            self._uploaded.add(name)

    def prune(self) -> None:
        """Remove the oldest files beyond the number to keep."""
        while len(self._kept) > self.num_to_keep >= 0:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            oldest.unlink(missing_ok=True)

    @property
    def saved(self) -> list[tuple[Timestamp, list[Path]]]:
        """The kept files, oldest first, each with the timestamp at which it was written."""
        return [(timestamp, [path]) for path, timestamp in self._kept.items()]
