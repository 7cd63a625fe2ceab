"""Names of files and folders with placeholders, such as ``{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt``."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from composer import dist
from composer._text import did_you_mean
from composer.core._fields import UNITS

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

__all__ = [
    "PROCESS_KEYS",
    "TIME_KEYS",
    "check_template",
    "differs_by_process",
    "format_name",
    "placeholders",
    "with_run_name",
]

# What a name may hold at any time, and what it may hold where the training time is known.
PROCESS_KEYS: Final = ("run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank")
TIME_KEYS: Final = tuple(UNITS)


def format_name(template: str, run_name: str, timestamp: Timestamp | None = None, **more: Any) -> str:
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
        ValueError: A placeholder is unknown, or the braces do not pair.

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
    check_template("", template, timed=timestamp is not None, more=more)
    return template.format_map(_Values(run_name, timestamp, more))


def check_template(argument: str, template: str, *, timed: bool = False, more: Collection[str] = ()) -> str:
    """Return ``template`` if :func:`format_name` will know each of its placeholders.

    Args:
        argument: Name of the argument, for the message.
        template: What was given.
        timed: Whether there will be a timestamp.
        more: Further placeholders that will have a value.

    Raises:
        TypeError: It is no string.
        ValueError: It has an unknown placeholder, or its braces do not pair.

    >>> check_template("folder", "{run_name}/traces")
    '{run_name}/traces'
    >>> check_template("folder", "{run_name}/{epoch}")
    Traceback (most recent call last):
    ...
    ValueError: folder='{run_name}/{epoch}' has the placeholder {epoch}, but does not change in training.
    """
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


def with_run_name(template: str, run_name: str) -> str:
    """Return a template in which ``{run_name}`` is replaced, and the other placeholders are left.

    Args:
        template: The name with placeholders.
        run_name: Name of the run; taken literally, so a brace in it starts no placeholder.

    >>> with_run_name("{run_name}/ep{epoch:03d}.pt", "night")
    'night/ep{epoch:03d}.pt'
    >>> with_run_name("{run_name}.pt", "{epoch}")
    '{{epoch}}.pt'
    """
    parts: list[str] = []
    for text, name, specification, conversion in string.Formatter().parse(template):
        parts.append(_escaped(text))
        if name is None:
            continue
        converted = f"!{conversion}" if conversion else ""
        field = f"{{{name}{converted}{':' if specification else ''}{specification}}}"
        parts.append(_escaped(field.format(run_name=run_name)) if name == "run_name" else field)
    return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


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
