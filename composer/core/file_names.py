"""Names of files with placeholders, as functions for scripts."""

from __future__ import annotations

import os
import posixpath
import string
from typing import TYPE_CHECKING, Any, Final

from composer.core.name_placeholders import PROCESS_KEYS, TIME_KEYS, check_inside, check_template, format_name

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = [
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "PartialFilePath",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "partial_format",
]

_ABOUT: Final = {
    "run_name": "Name of the run.",
    "rank": "Number of the process among all.",
    "local_rank": "Number of the process on its node.",
    "world_size": "Number of processes.",
    "local_world_size": "Number of processes on the node.",
    "node_rank": "Number of the node.",
}


def _table(names: tuple[str, ...]) -> str:
    about = {name: f"Counter ``{name}`` of the training time." for name in names} | {
        name: f"Time ``{name}`` in seconds." for name in names if name.endswith("_wct")
    }
    rows = [f"| ``{{{name}}}`` | {_ABOUT.get(name) or about[name]} |" for name in names]
    return "\n".join(["| Placeholder | What stands for it |", "| --- | --- |", *rows])


FORMAT_NAME_WITH_DIST_TABLE: Final = _table(PROCESS_KEYS)
"""The placeholders of names that do not change in training, as a table in Markdown."""

FORMAT_NAME_WITH_DIST_AND_TIME_TABLE: Final = _table((*PROCESS_KEYS, *TIME_KEYS))
"""The placeholders of names that may change in training, as a table in Markdown."""


def format_name_with_dist(format_str: str, run_name: str, **extra_format_kwargs: object) -> str:
    """Return a name with the run and the process in place of its placeholders.

    Args:
        format_str: The name with placeholders, see :data:`FORMAT_NAME_WITH_DIST_TABLE`.
        run_name: Name of the run.
        extra_format_kwargs: Further values by placeholder.

    Raises:
        ValueError: A placeholder is unknown.

    >>> format_name_with_dist("{run_name}/rank{rank}-{part}.txt", "night", part=2)
    'night/rank0-2.txt'
    """
    return format_name(format_str, run_name, None, **extra_format_kwargs)


def format_name_with_dist_and_time(
    format_str: str, run_name: str, timestamp: Timestamp, **extra_format_kwargs: object
) -> str:
    """Return a name with the run, the process and the training time in place of its placeholders.

    Args:
        format_str: The name with placeholders, see :data:`FORMAT_NAME_WITH_DIST_AND_TIME_TABLE`.
        run_name: Name of the run.
        timestamp: The training time.
        extra_format_kwargs: Further values by placeholder.

    Raises:
        ValueError: A placeholder is unknown.

    >>> from composer import Timestamp
    >>> format_name_with_dist_and_time("{run_name}/ep{epoch}.pt", "night", Timestamp(epoch=3))
    'night/ep3.pt'
    """
    return format_name(format_str, run_name, timestamp, **extra_format_kwargs)


class PartialFilePath:
    """A path with placeholders, to be formatted when the run is known.

    Args:
        filename: Name of the file; may tell the training time.
        folder: The folder, a path or URI; must not tell the time. None if ``filename`` is the whole path.

    Raises:
        ValueError: A placeholder is unknown, or the file is not in the folder.

    >>> from composer import State
    >>> path = PartialFilePath("ep{epoch}.pt", "{run_name}/checkpoints")
    >>> path.format(State(torch.nn.Linear(1, 1), run_name="night"))
    'night/checkpoints/ep0.pt'
    """

    def __init__(self, filename: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> None:
        filename = check_template("filename", filename, timed=True)
        self.filename = filename if folder is None else check_inside("filename", filename)
        self.folder = None if folder is None else check_template("folder", folder)

    def __repr__(self) -> str:
        return repr(self.filename if self.folder is None else f"{self.folder}/{self.filename}")

    def format(self, state: State, is_dir: bool = False, keep_placeholders: bool = False) -> str:
        """Return the path.

        Args:
            state: The state of the run.
            is_dir: Whether it is a folder, and the name is to end so.
            keep_placeholders: Whether to leave the placeholders in.
        """

        def filled(template: str, timestamp: Timestamp | None) -> str:
            return template if keep_placeholders else format_name(template, state.run_name, timestamp)

        name = filled(self.filename, state.timestamp)
        if self.folder is not None:
            join = posixpath.join if "://" in self.folder else os.path.join
            name = join(filled(self.folder, None), name)
        return f"{name.rstrip('/')}/" if is_dir else name


def partial_format(s: str, *args: Any, **kwargs: Any) -> str:
    """Return a text with those placeholders replaced that have a value; the others stay for later.

    Args:
        s: The text with placeholders, as of :meth:`str.format`.
        args: Values of placeholders without a name.
        kwargs: Values of the others by name.

    >>> partial_format("{run_name}/ep{epoch:02d}-{}", "last", run_name="night")
    'night/ep{epoch:02d}-last'
    """
    return _PartialFormatter().vformat(s, args, kwargs)


class _PartialFormatter(string.Formatter):
    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_value(key, args, kwargs)
        except (IndexError, KeyError):
            return _Placeholder(key if isinstance(key, str) else "")

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if isinstance(value, _Placeholder) and conversion:
            return _Placeholder(f"{value}"[1:-1] + f"!{conversion}")
        return super().convert_field(value, conversion)  # pyright: ignore[reportArgumentType]


class _Placeholder:
    """Formats as the placeholder that it stands for."""

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> _Placeholder:
        return _Placeholder(f"{self.__name}.{name}")

    def __getitem__(self, key: int | str) -> _Placeholder:
        return _Placeholder(f"{self.__name}[{key}]")

    def __format__(self, specification: str) -> str:
        return f"{{{self.__name}:{specification}}}" if specification else f"{{{self.__name}}}"
