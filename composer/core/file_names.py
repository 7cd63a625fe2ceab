"""Format file names with placeholders such as "ep{epoch}-rank{rank}.pt"; public functions for scripts."""

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
    "rank": "Global rank.",
    "local_rank": "Rank on its node.",
    "world_size": "Number of ranks.",
    "local_world_size": "Number of ranks on the node.",
    "node_rank": "Rank of the node.",
}


def _table(names: tuple[str, ...]) -> str:
    about = {name: f"Counter ``{name}`` of the timestamp." for name in names} | {
        name: f"Time ``{name}`` in seconds." for name in names if name.endswith("_wct")
    }
    rows = [f"| ``{{{name}}}`` | {_ABOUT.get(name) or about[name]} |" for name in names]
    return "\n".join(["| Placeholder | Value |", "| --- | --- |", *rows])


FORMAT_NAME_WITH_DIST_TABLE: Final = _table(PROCESS_KEYS)
"""The placeholders of names that do not change during training, as a Markdown table."""

FORMAT_NAME_WITH_DIST_AND_TIME_TABLE: Final = _table((*PROCESS_KEYS, *TIME_KEYS))
"""The placeholders of names that may change during training, as a Markdown table."""


def format_name_with_dist(format_str: str, run_name: str, **extra_format_kwargs: object) -> str:
    """Format a name with the run name and the rank.

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
    """Format a name with the run name, the rank and the timestamp.

    Args:
        format_str: The name with placeholders, see :data:`FORMAT_NAME_WITH_DIST_AND_TIME_TABLE`.
        run_name: Name of the run.
        timestamp: The timestamp.
        extra_format_kwargs: Further values by placeholder.

    Raises:
        ValueError: A placeholder is unknown.

    >>> from composer import Timestamp
    >>> format_name_with_dist_and_time("{run_name}/ep{epoch}.pt", "night", Timestamp(epoch=3))
    'night/ep3.pt'
    """
    return format_name(format_str, run_name, timestamp, **extra_format_kwargs)


class PartialFilePath:
    """A path with placeholders, which is formatted later with a state.

    Args:
        filename: Name of the file; may have placeholders of the timestamp.
        folder: The folder, a path or URI; without placeholders of the timestamp. None if ``filename`` is the full path.

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
        """Return the formatted path.

        Args:
            state: The state of the run.
            is_dir: Whether it is a folder, and ends with a slash.
            keep_placeholders: Whether to keep the placeholders.
        """

        def filled(template: str, timestamp: Timestamp | None) -> str:
            return template if keep_placeholders else format_name(template, state.run_name, timestamp)

        name = filled(self.filename, state.timestamp)
        if self.folder is not None:
            join = posixpath.join if "://" in self.folder else os.path.join
            name = join(filled(self.folder, None), name)
        return f"{name.rstrip('/')}/" if is_dir else name


def partial_format(s: str, *args: Any, **kwargs: Any) -> str:
    """Replace the placeholders that have a value; keep the others.

    Args:
        s: The text with placeholders, as for :meth:`str.format`.
        args: Values of positional placeholders.
        kwargs: Values of named placeholders.

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
    """Formats as the placeholder itself."""

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> _Placeholder:
        return _Placeholder(f"{self.__name}.{name}")

    def __getitem__(self, key: int | str) -> _Placeholder:
        return _Placeholder(f"{self.__name}[{key}]")

    def __format__(self, specification: str) -> str:
        return f"{{{self.__name}:{specification}}}" if specification else f"{{{self.__name}}}"
