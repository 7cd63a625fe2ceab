"""RunFile: the log file of a run, which rank writes it, and whether it is resumed, moved or overwritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.name_placeholders import check_remote_name, check_template, differs_by_rank, format_name
from composer.core.run_files import set_aside

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["RunFile"]


class RunFile:
    """The log file of a run, located once the run name is known and a checkpoint may have been loaded.

    If the loaded checkpoint refers to an existing file of that name, the file is continued. Any other existing file is
    moved, ``logs.txt`` to ``logs.1.txt``, or replaced with ``overwrite``; one that ``replaces`` rejects is moved in any
    case. If the name is the same for all ranks, only rank 0 writes.

    Args:
        filename: Path with placeholders, see :func:`.format_name`.
        remote_file_name: Name with placeholders under which loggers that store files receive it; None does not upload
            it.
        overwrite: Replace a file of an earlier run.
        replaces: Whether an existing file may be continued or replaced; by default every file.

    Raises:
        TypeError: A name is not a string.
        ValueError: A name has an unknown placeholder.

    Attributes:
        is_active: Whether this rank writes the file.
        path: Path of the file; None before :meth:`open`, and on ranks that do not write.
        keeps_rest: Whether a continued file keeps what was written after the checkpoint.

    >>> import tempfile
    >>> from composer import State
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = RunFile(folder + "/{run_name}/logs.txt")
    ...     file.open(State(torch.nn.Linear(1, 1), run_name="night"))
    ...     file.path.relative_to(folder).as_posix()
    'night/logs.txt'
    """

    def __init__(
        self,
        filename: str | Path,
        remote_file_name: str | Path | None = None,
        overwrite: bool = False,
        replaces: Callable[[Path], bool] | None = None,
    ) -> None:
        self.filename = check_template("filename", filename)
        self.remote_file_name = None if remote_file_name is None else str(remote_file_name)
        if remote_file_name is not None:
            template = check_template("remote_file_name", remote_file_name)
            self.remote_file_name = check_remote_name("remote_file_name", template)
        self.overwrite = overwrite
        self._replaces = replaces
        self.is_active = differs_by_rank(self.filename) or dist.get_global_rank() == 0
        self.path: Path | None = None
        self.keeps_rest = False
        self._saved: dict[str, Any] = {}

    @property
    def location(self) -> str | None:
        """Path of the file that is or was written; None if there is none."""
        return None if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """Path of the file, with placeholders until the run is known."""
        return self.location or self.filename

    def open(self, state: State) -> dict[str, Any] | None:
        """Create the folder, and move or remove an existing file unless the run continues it.

        Args:
            state: The state of the run.

        Returns:
            The saved :meth:`state_dict` if the file is continued; empty if that described the file of another rank, or
            the rest of the file is kept. None if a new file begins.

        Raises:
            IsADirectoryError: The path is that of a folder, which is left as it is.
        """
        self.path = path = Path(format_name(self.filename, state.run_name))
        path.parent.mkdir(parents=True, exist_ok=True)
        saved, self._saved = self._saved, {}
        if not path.exists():
            return None
        if path.is_dir():
            raise IsADirectoryError(f"filename={str(path)!r} is a folder. Name a file in it.")
        if self._replaces is not None and not self._replaces(path):
            set_aside(path)
            return None
        if saved.get("run_name") == state.run_name:
            return saved if saved.get("file") == str(path) and not self.keeps_rest else {}
        if self.overwrite:
            path.unlink()
        else:
            set_aside(path)
        return None

    def close(self) -> None:
        """Release the run; the next run has a separate file."""
        self.path = None

    def upload(self, state: State, logger: Logger) -> None:
        """Upload the file to the loggers that store files, if ``remote_file_name`` is set.

        Args:
            state: The state of the run.
            logger: The logger.
        """
        if self.remote_file_name is not None and self.path is not None and self.path.exists():
            name = format_name(self.remote_file_name, state.run_name)
            logger.upload_file(name, self.path, overwrite=True)

    def state_dict(self, state: State, **position: Any) -> dict[str, Any]:
        """Return the state for a checkpoint, so that a resumed run continues the file.

        Args:
            state: The state of the run.
            position: The current position in the file.
        """
        return {"run_name": state.run_name, "file": str(self.path), **position}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the file is opened.

        Args:
            saved: The return value of :meth:`state_dict`.
        """
        self._saved = dict(saved)
