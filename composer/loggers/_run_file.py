"""A file that belongs to a run: its name, who writes it, and what happens to one that is there already."""

from __future__ import annotations

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
    """Finds the file of a run, once the name of the run is known and a checkpoint has been loaded or not.

    A file of that name belongs to the run if the checkpoint says so; then it is gone on with. Any other is moved out of
    the way, ``logs.txt`` to ``logs.1.txt``, or replaced if ``overwrite``. Where the name does not tell the processes
    apart, the first of them writes and the others do not.

    Args:
        filename: Path with placeholders, see :func:`.format_name`.
        remote_file_name: Name with placeholders under which the destinations that keep files get it; None is not at
            all.
        overwrite: Whether a file of an earlier run may be replaced.

    Raises:
        TypeError: A name is no string.
        ValueError: A name has an unknown placeholder.

    Attributes:
        is_ours: Whether this process writes.
        path: Where the file is; None before :meth:`open`, and in processes that write none.

    >>> import tempfile
    >>> from composer import State
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = RunFile(folder + "/{run_name}/logs.txt")
    ...     file.open(State(torch.nn.Linear(1, 1), run_name="night"))
    ...     file.path.relative_to(folder).as_posix()
    'night/logs.txt'
    """

    def __init__(
        self, filename: str | Path, remote_file_name: str | Path | None = None, overwrite: bool = False
    ) -> None:
        self.filename = check_template("filename", filename)
        self.remote_file_name = None if remote_file_name is None else str(remote_file_name)
        if remote_file_name is not None:
            template = check_template("remote_file_name", remote_file_name)
            self.remote_file_name = check_remote_name("remote_file_name", template)
        self.overwrite = overwrite
        self.is_ours = differs_by_rank(self.filename) or dist.get_global_rank() == 0
        self.path: Path | None = None
        self._saved: dict[str, Any] = {}

    @property
    def location(self) -> str | None:
        """Path of the file that is or was written; None where there is none."""
        return None if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """Path of the file; with its placeholders as long as the run is unknown."""
        return self.location or self.filename

    def open(self, state: State) -> dict[str, Any] | None:
        """Make the folder, and place for the file.

        Args:
            state: The state of the run.

        Returns:
            What :meth:`state_dict` kept, if the file is gone on with; it is empty for a file of another process.
            None if the file is to be begun.
        """
        self.path = path = Path(format_name(self.filename, state.run_name))
        path.parent.mkdir(parents=True, exist_ok=True)
        saved, self._saved = self._saved, {}
        if not path.exists():
            return None
        if saved.get("run_name") == state.run_name:
            return saved if saved.get("file") == str(path) else {}
        if self.overwrite:
            path.unlink()
        else:
            set_aside(path)
        return None

    def close(self) -> None:
        """Forget the run; the next one has a file of its own."""
        self.path = None

    def upload(self, state: State, logger: Logger) -> None:
        """Hand the file to the destinations that keep files, if that was asked for.

        Args:
            state: The state of the run.
            logger: Leads to the destinations.
        """
        if self.remote_file_name is not None and self.path is not None and self.path.exists():
            name = format_name(self.remote_file_name, state.run_name)
            logger.upload_file(name, self.path, overwrite=True)

    def state_dict(self, state: State, **position: Any) -> dict[str, Any]:
        """Return what a checkpoint keeps, so that a resumed run goes on with the file.

        Args:
            state: The state of the run.
            position: How much of the file there is.
        """
        return {"run_name": state.run_name, "file": str(self.path), **position}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Remember what a checkpoint kept until the file is opened.

        Args:
            saved: The result of :meth:`state_dict`.
        """
        self._saved = dict(saved)
