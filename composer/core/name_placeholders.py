"""Names of files and folders with placeholders, such as ``{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt``."""

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
    "differs_by_process",
    "format_name",
    "placeholders",
    "with_braces",
    "with_run_name",
]

# What a name may hold at any time, and what it may hold where the training time is known.
PROCESS_KEYS: Final = ("run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank")
TIME_KEYS: Final = tuple(UNITS)
# Bytes of the name of a file or folder, on the systems in use.
_LONGEST: Final = 255


def format_name(
    template: str | os.PathLike[str], run_name: str, timestamp: Timestamp | None = None, **more: Any
) -> str:
    """Return a name with its placeholders replaced.

    Every template knows ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{world_size}``, ``{local_world_size}`` and
    ``{node_rank}``. With a timestamp it knows all of its fields: ``{epoch}``, ``{batch}``, ``{sample}``, ``{token}``,
    ``{iteration}``, ``{batch_in_epoch}``, ... as whole numbers, ``{total_wct}``, ``{epoch_wct}``, ... in seconds.
    Format specifications work (``{batch:06d}``); a brace is written twice (``{{``).

    Args:
        template: The name with placeholders.
        run_name: Name of the run.
        timestamp: The training time that the name tells; None for a name that tells none.
        more: Further values by placeholder.

    Raises:
        ValueError: A placeholder is unknown, the braces do not pair, or the name of the run leads out of a folder.

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
    """Return a template as a string if :func:`format_name` will know each of its placeholders.

    Args:
        argument: Name of the argument, for the message.
        template: What was given.
        timed: Whether there will be a timestamp.
        more: Further placeholders that will have a value.

    Raises:
        TypeError: It is neither a string nor a path.
        ValueError: It has an unknown placeholder, or its braces do not pair.

    >>> check_template("folder", "{run_name}/traces")
    '{run_name}/traces'
    >>> check_template("folder", "{run_name}/{epoch}")
    Traceback (most recent call last):
    ...
    ValueError: folder='{run_name}/{epoch}' has the placeholder {epoch}, but does not change in training.
    """
    template = os.fspath(template) if isinstance(template, os.PathLike) else template
    if not isinstance(template, str):
        raise TypeError(f"{argument or 'template'} must be a string, but got {template!r}.")
    known = {*PROCESS_KEYS, *more, *(TIME_KEYS if timed else ())}
    what = f"{argument}={template!r}" if argument else repr(template)
    try:
        names = placeholders(template)
    except ValueError as error:
        raise ValueError(f"{what} is no name with placeholders: {error}. Write {{{{ for a brace.") from None
    for name in names:
        if name in known:
            continue
        if name in TIME_KEYS:
            raise ValueError(f"{what} has the placeholder {{{name}}}, but does not change in training.")
        hint = did_you_mean(name, known) or f" Known are {', '.join(sorted(known))}."
        raise ValueError(f"{what} has the unknown placeholder {{{name}}}.{hint}")
    return template


def check_inside(argument: str, name: str) -> str:
    """Return the name of a file if it stays in the folder that it is put into.

    Args:
        argument: Name of the argument, for the message.
        name: What was given; may have folders in it, as in ``sub/ep{epoch}.pt``.

    Raises:
        ValueError: It has ``..`` in it, is an absolute path, or is no path.

    >>> check_inside("save_filename", "./sub/ep{epoch}.pt")
    'sub/ep{epoch}.pt'
    >>> check_inside("save_filename", "../ep{epoch}.pt")
    Traceback (most recent call last):
    ValueError: save_filename='../ep{epoch}.pt' leads out of its folder by '..'. Give a name inside of it, ...
    """
    inside = re.sub(r"^(\./)+", "", name)
    reason = _leads_out(inside)
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. Give a name inside of it, such as 'sub/name'.")
    return inside


def check_remote_name(argument: str, name: str) -> str:
    """Return the name of a file in a store, or its URI, if it stays in the bucket or folder of the store.

    Args:
        argument: Name of the argument, for the message.
        name: What was given. A slash at the beginning is the root of the store.

    Raises:
        ValueError: It has ``..`` in it, or is no path.

    >>> check_remote_name("remote_file_name", "s3://bucket/run/ep1.pt")
    's3://bucket/run/ep1.pt'
    """
    scheme, found, rest = name.partition("://")
    reason = _leads_out((rest if found else scheme).strip("/"))
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. Give a name inside of it, such as 'run/name'.")
    return name


def check_run_name(argument: str, name: str) -> str:
    """Return the name of a run if it can be part of a path: one name, or several with slashes between them.

    Braces and other characters with a meaning elsewhere are taken literally: a run may be named ``{epoch}``.

    Args:
        argument: Where the name comes from, for the message.
        name: The name.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty, an absolute path, too long, ends in a slash, or has ``..`` or control characters in it.

    >>> check_run_name("run_name", "sweep/lr-{0.1}")
    'sweep/lr-{0.1}'
    >>> check_run_name("COMPOSER_RUN_NAME", "../../other")
    Traceback (most recent call last):
    ValueError: COMPOSER_RUN_NAME='../../other' leads out of its folder by '..'. A run is named by text such as ...
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a string, but got {name!r}.")
    reason = "has no name in it" if not name.strip() else _leads_out(name) or _no_name_of_folders(name)
    if reason is not None:
        raise ValueError(f"{argument}={name!r} {reason}. A run is named by text such as 'night' or 'sweep/night'.")
    return name


def with_run_name(template: str, run_name: str) -> str:
    """Return a template with the name of the run in it, literally, and all other placeholders left for later.

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
    """Return a template that stands for a text literally.

    Args:
        text: The text.

    >>> with_braces("{epoch}")
    '{{epoch}}'
    """
    return text.replace("{", "{{").replace("}", "}}")


def _leads_out(name: str) -> str | None:
    """Why a name is none inside of a folder, on any system; None if it is one."""
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "has control characters in it"
    parts = re.split(r"[/\\]", name)
    if ".." in parts:
        return "leads out of its folder by '..'"
    if re.match(r"[A-Za-z]:", name):
        return f"has a drive, {name[:2]!r}, at its beginning"
    if parts[0] == "":
        return "is empty" if not name else "is an absolute path"
    if "" in parts[:-1] or "." in parts:
        return "has a part without a name in it"
    return None


def _no_name_of_folders(name: str) -> str | None:
    """Why no folders can have a name, or have it as it is; None if they can."""
    if name[-1] in "/\\":
        return "has a slash at its end"
    try:
        longest = max(len(part.encode()) for part in name.split("/"))
    except UnicodeEncodeError:
        return "has characters in it that are no text in UTF-8"
    return f"has a part of {longest} bytes, of at most {_LONGEST}" if longest > _LONGEST else None


def placeholders(template: str) -> tuple[str, ...]:
    """Return the placeholders of a template in their order.

    Args:
        template: The name with placeholders.

    Raises:
        ValueError: The braces do not pair.

    >>> placeholders("{run_name}/rank{rank}-{{x}}")
    ('run_name', 'rank')
    """
    return tuple(_fields(template))


def differs_by_process(template: str) -> bool:
    """Return whether each process gets a name of its own, rather than one for all of them or for those of a node.

    Args:
        template: The name with placeholders.

    >>> differs_by_process("{run_name}/rank{rank}.txt"), differs_by_process("{run_name}/log.txt")
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
    """The values of placeholders, of which only those are looked up that a name has."""

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
