"""Check and format file and folder names with placeholders: ``{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt``."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from composer import dist
from composer._text import did_you_mean
from composer.core._timestamp_fields import UNITS

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

__all__ = [
    "PROCESS_KEYS",
    "TIME_KEYS",
    "check_inside",
    "check_remote_name",
    "check_run_name",
    "check_template",
    "differs_by_rank",
    "format_name",
    "placeholders",
    "with_braces",
    "with_run_name",
]

# Placeholders that are always available, and those that require a timestamp.
PROCESS_KEYS: Final = ("run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank")
TIME_KEYS: Final = tuple(UNITS)
# Maximum length of a file or folder name in bytes, on common file systems.
_LONGEST: Final = 255


def format_name(
    template: str | os.PathLike[str], run_name: str, timestamp: Timestamp | None = None, **more: Any
) -> str:
    """Return a name with its placeholders replaced.

    Every template supports ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{world_size}``, ``{local_world_size}`` and
    ``{node_rank}``. With a timestamp, it also supports all of its fields: ``{epoch}``, ``{batch}``, ``{sample}``,
    ``{token}``, ``{iteration}``, ``{batch_in_epoch}``, ... as integers, ``{total_wct}``, ``{epoch_wct}``, ... in
    seconds. Format specifications work (``{batch:06d}``); write a literal brace twice (``{{``).

    Args:
        template: The name with placeholders.
        run_name: Name of the run.
        timestamp: The timestamp; None for a name without its fields.
        more: Additional values by placeholder.

    Raises:
        ValueError: A placeholder is unknown, braces are not balanced, or the run name points outside of a folder.

    >>> from composer import Timestamp
    >>> format_name(
    ...     "{run_name}/ep{epoch}-ba{batch:04d}-rank{rank}.pt", "night", Timestamp(epoch=1, batch=20)
    ... )
    'night/ep1-ba0020-rank0.pt'
    >>> format_name("{run_nam}/logs.txt", "night")
    Traceback (most recent call last):
    ...
    ValueError: '{run_nam}/logs.txt' has the unknown placeholder {run_nam}. Did you mean 'run_name'?
    """
    template = check_template("", template, timed=timestamp is not None, more=more)
    if "run_name" in placeholders(template):
        check_run_name("run_name", run_name)
    return template.format_map(_Values(run_name, timestamp, more))


def check_template(
    argument: str, template: str | os.PathLike[str], *, timed: bool = False, more: Collection[str] = ()
) -> str:
    """Return a template as a string if :func:`format_name` supports each of its placeholders.

    Args:
        argument: Name of the argument, for the error message.
        template: The name with placeholders.
        timed: Whether it will be formatted with a timestamp.
        more: Additional placeholders.

    Raises:
        TypeError: It is neither a string nor a path.
        ValueError: It has an unknown placeholder, or its braces are not balanced.

    >>> check_template("folder", "{run_name}/traces")
    '{run_name}/traces'
    >>> check_template("folder", "{run_name}/{epoch}")
    Traceback (most recent call last):
    ...
    ValueError: folder='{run_name}/{epoch}' has the placeholder {epoch}, but does not change during training.
    """
    template = os.fspath(template) if isinstance(template, os.PathLike) else template
    if not isinstance(template, str):
        raise TypeError(f"{argument or 'template'} must be a string, but got {template!r}.")
    known = {*PROCESS_KEYS, *more, *(TIME_KEYS if timed else ())}
    what = f"{argument}={template!r}" if argument else repr(template)
    try:
        names = placeholders(template)
    except ValueError as error:
        raise ValueError(f"{what} has invalid placeholders: {error}. Write {{{{ for a literal brace.") from None
    for name in names:
        if name in known:
            continue
        if name in TIME_KEYS:
            raise ValueError(f"{what} has the placeholder {{{name}}}, but does not change during training.")
        hint = did_you_mean(name, known) or f" Known placeholders are {', '.join(sorted(known))}."
        raise ValueError(f"{what} has the unknown placeholder {{{name}}}.{hint}")
    return template


def check_inside(argument: str, name: str) -> str:
    """Return the name of a file if it stays inside the folder that it is relative to.

    Args:
        argument: Name of the argument, for the error message.
        name: The name; may contain folders, as in ``sub/ep{epoch}.pt``.

    Raises:
        ValueError: It contains ``..``, is an absolute path, or is not a valid path.

    >>> check_inside("save_filename", "./sub/ep{epoch}.pt")
    'sub/ep{epoch}.pt'
    >>> check_inside("save_filename", "../ep{epoch}.pt")
    Traceback (most recent call last):
    ValueError: save_filename='../ep{epoch}.pt' points outside of its folder by '..'. Pass a name inside of it, ...
    """
    inside = re.sub(r"^(\./)+", "", name)
    reason = _path_problem(inside)
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. Pass a name inside of it, such as 'sub/name'.")
    return inside


def check_remote_name(argument: str, name: str) -> str:
    """Return the name of a remote file, or its URI, if it stays inside the bucket or folder.

    Args:
        argument: Name of the argument, for the error message.
        name: The name. A leading slash is the root of the bucket.

    Raises:
        ValueError: It contains ``..``, or is not a valid path.

    >>> check_remote_name("remote_file_name", "s3://bucket/run/ep1.pt")
    's3://bucket/run/ep1.pt'
    """
    scheme, found, rest = name.partition("://")
    reason = _path_problem((rest if found else scheme).strip("/"))
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. Pass a name inside of it, such as 'run/name'.")
    return name


def check_run_name(argument: str, name: str) -> str:
    """Return the name of a run if it is valid in a path: one name, or several separated by slashes.

    Braces and other special characters are literal: a run may be named ``{epoch}``.

    Args:
        argument: The source of the name, for the error message.
        name: The name.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, an absolute path, too long, ends in a slash, or contains ``..`` or control characters.

    >>> check_run_name("run_name", "sweep/lr-{0.1}")
    'sweep/lr-{0.1}'
    >>> check_run_name("COMPOSER_RUN_NAME", "../../other")
    Traceback (most recent call last):
    ValueError: COMPOSER_RUN_NAME='../../other' points outside of its folder by '..'. Pass a name such as ...
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a string, but got {name!r}.")
    reason = "is blank" if not name.strip() else _path_problem(name) or _folder_problem(name)
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. Pass a name such as 'night' or 'sweep/night'.")
    return name


def with_run_name(template: str, run_name: str) -> str:
    """Insert the run name into a template literally, and keep all other placeholders.

    Args:
        template: The name with placeholders.
        run_name: Name of the run.

    >>> with_run_name("{run_name}-ep{epoch:03d}.pt", "{batch}")
    '{{batch}}-ep{epoch:03d}.pt'
    """
    if "run_name" in placeholders(template):
        check_run_name("run_name", run_name)
    made: list[str] = []
    for text, name, specification, conversion in string.Formatter().parse(template):
        made.append(with_braces(text))
        if name is None:
            continue
        field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{specification}' if specification else ''}}}"
        made.append(with_braces(field.format(run_name=run_name)) if name == "run_name" else field)
    return "".join(made)


def with_braces(text: str) -> str:
    """Escape braces, so that a template formats to the given text.

    Args:
        text: The text.

    >>> with_braces("{epoch}")
    '{{epoch}}'
    """
    return text.replace("{", "{{").replace("}", "}}")


def _path_problem(name: str) -> str | None:
    """Return why a name is not a valid path inside a folder, on any system; None if it is valid."""
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "contains control characters"
    parts = re.split(r"[/\\]", name)
    if ".." in parts:
        return "points outside of its folder by '..'"
    if re.match(r"[A-Za-z]:", name):
        return f"begins with a drive, {name[:2]!r}"
    if parts[0] == "":
        return "is empty" if not name else "is an absolute path"
    if "" in parts[:-1] or "." in parts:
        return "has an empty or '.' component"
    return None


def _folder_problem(name: str) -> str | None:
    """Return why a name is not valid for folders; None if it is valid."""
    if name[-1] in "/\\":
        return "ends in a slash"
    try:
        longest = max(len(part.encode()) for part in name.split("/"))
    except UnicodeEncodeError:
        return "contains characters that cannot be encoded in UTF-8"
    return f"has a component of {longest} bytes; the limit is {_LONGEST}" if longest > _LONGEST else None


def placeholders(template: str) -> tuple[str, ...]:
    """Return the placeholders of a template in order.

    Args:
        template: The name with placeholders.

    Raises:
        ValueError: The braces are not balanced.

    >>> placeholders("{run_name}/rank{rank}-{{x}}")
    ('run_name', 'rank')
    """
    return tuple(_fields(template))


def differs_by_rank(template: str) -> bool:
    """Return whether each rank gets a different name, rather than one name for all ranks or for those of a node.

    Args:
        template: The name with placeholders.

    >>> differs_by_rank("{run_name}/rank{rank}.txt"), differs_by_rank("{run_name}/log.txt")
    (True, False)
    """
    names = placeholders(template)
    return "rank" in names or {"node_rank", "local_rank"} <= set(names)


def _fields(template: str) -> Iterator[str]:
    for _, name, specification, _ in string.Formatter().parse(template):
        if name is not None:
            yield name
            yield from _fields(specification or "")


class _Values(dict[str, Any]):
    """The values of placeholders, computed only for placeholders that a name has."""

    def __init__(self, run_name: str, timestamp: Timestamp | None, more: dict[str, Any]) -> None:
        super().__init__({"run_name": run_name, **more})
        self._timestamp = timestamp

    def __missing__(self, name: str) -> Any:
        if name in _PROCESS_FUNCTIONS:
            return getattr(dist, _PROCESS_FUNCTIONS[name])()
        assert self._timestamp is not None
        value = self._timestamp.state_dict()[name]
        return value if isinstance(value, int) else value.total_seconds()


_PROCESS_FUNCTIONS: Final = {
    "rank": "get_global_rank",
    "local_rank": "get_local_rank",
    "world_size": "get_world_size",
    "local_world_size": "get_local_world_size",
    "node_rank": "get_node_rank",
}
