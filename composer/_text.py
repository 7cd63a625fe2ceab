"""Validate names and choices, with error messages that suggest a correction ("Did you mean ...?"), and format text."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

__all__ = [
    "callable_or_none",
    "did_you_mean",
    "did_you_slip",
    "dtype_name",
    "first_of",
    "is_slip",
    "member_of",
    "one_of",
    "plural",
    "printable",
    "shortened",
    "word_set",
]

Choice = TypeVar("Choice")
Member = TypeVar("Member", bound=StrEnum)

_NO_ALIASES: Mapping[str, str] = MappingProxyType({})


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a hint with the candidate closest to a mistyped name, or nothing.

    Args:
        name: The given name.
        candidates: The valid names. Case is ignored in the comparison.

    >>> did_you_mean("adamm", ["sgd", "adam"])
    " Did you mean 'adam'?"
    >>> did_you_mean("xyz", ["sgd", "adam"])
    ''
    """
    by_lower: dict[str, list[str]] = {}
    for candidate in candidates:
        by_lower.setdefault(candidate.lower(), []).append(str(candidate))
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if not close:
        return ""
    # `Trainer` and `trainer` may both exist; prefer the one with the given case.
    meant = max(by_lower[close[0]], key=lambda spelling: difflib.SequenceMatcher(None, name, spelling).ratio())
    return f" Did you mean {meant!r}?"


def did_you_slip(name: str, candidates: Iterable[str]) -> str:
    """Return a hint with the candidate that a name is a misspelling of, or nothing.

    Stricter than :func:`did_you_mean`, for names that may be valid in another library: one letter is wrong (two in a
    long name), or the words are the same in another order.

    Args:
        name: The given name.
        candidates: The valid names.

    >>> did_you_slip("max_duratoin", ["max_duration"]), did_you_slip("folder_save", ["save_folder"])
    (" Did you mean 'max_duration'?", " Did you mean 'save_folder'?")
    >>> did_you_slip("mode", ["model"]), did_you_slip("save_every", ["save_overwrite"])
    ('', '')
    """
    written, words = name.lower(), sorted(name.lower().replace("-", "_").split("_"))
    for found in candidates:
        meant = found.lower()
        same = sorted(meant.split("_")) == words or meant.replace("_", "") == written.replace("_", "")
        # A short name with one different letter is a different word.
        shortest = min(len(written), len(meant)) + (len(written) > len(meant))
        if same or sorted(meant) == sorted(written) or (shortest > 4 and _is_near(written, meant)):
            return f" Did you mean {found!r}?"
    return ""


def _is_near(written: str, meant: str) -> bool:
    """Return whether two names differ by one typo, or by two if they are long."""
    if is_slip(written, meant):
        return True
    if min(len(written), len(meant)) < 8:
        return False
    once = (written[:i] + written[i + 1 :] for i in range(len(written)))
    return any(is_slip(one, meant) for one in once) or any(
        is_slip(written, meant[:i] + meant[i + 1 :]) for i in range(len(meant))
    )


def is_slip(written: str, meant: str) -> bool:
    """Return whether two names differ by one typo: a letter too many, missing, wrong, or swapped with the next.

    Stricter than :func:`did_you_mean`, for names that may well be valid.

    Args:
        written: The given name.
        meant: The valid name.

    >>> is_slip("foward", "forward"), is_slip("froward", "forward"), is_slip("reward", "forward")
    (True, True, False)
    """
    for _ in range(2):  # remove the common prefix, then the common suffix
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(written, meant, strict=False)))
        written, meant = written[same:][::-1], meant[same:][::-1]
    one_letter = max(len(written), len(meant)) == 1
    return one_letter or (len(written) == 2 and written == meant[::-1])


def one_of(argument: str, value: Choice, choices: Iterable[Choice]) -> Choice:
    """Return ``value`` if it is one of ``choices``.

    Args:
        argument: Name of the argument, for the message.
        value: The given value.
        choices: The allowed values.

    Raises:
        ValueError: ``value`` is not in ``choices``.

    >>> one_of("mode", "max", ["min", "max"])
    'max'
    >>> one_of("mode", "maxx", ["min", "max"])
    Traceback (most recent call last):
    ...
    ValueError: mode must be one of 'min', 'max', but got 'maxx'. Did you mean 'max'?
    """
    allowed = list(choices)
    if value in allowed:
        return value
    raise _not_one_of(argument, value, allowed)


def member_of(enum: type[Member], argument: str, value: object, aliases: Mapping[str, str] = _NO_ALIASES) -> Member:
    """Return the member of an enumeration for a value in any case, or for an alias.

    For use in ``_missing_``, which ``Enum`` calls for unknown values.

    Args:
        enum: The enumeration; its values are in lower case.
        argument: Name of the argument, for the message.
        value: The given value.
        aliases: Values by alias, in lower case.

    Raises:
        ValueError: ``value`` names no member.

    >>> class Side(StrEnum):
    ...     LEFT = "left"
    ...     RIGHT = "right"
    >>> member_of(Side, "side", " Left"), member_of(Side, "side", "R", {"r": "right"})
    (<Side.LEFT: 'left'>, <Side.RIGHT: 'right'>)
    >>> member_of(Side, "side", "rigth")
    Traceback (most recent call last):
    ...
    ValueError: side must be one of 'left', 'right', but got 'rigth'. Did you mean 'right'?
    """
    known = [member.value for member in enum]
    if isinstance(value, str):
        name = value.strip().lower()
        name = aliases.get(name, name)
        if name in known:
            return enum(name)
    raise _not_one_of(argument, value, known)


def callable_or_none(argument: str, value: Choice) -> Choice:
    """Return ``value`` if it can be called, or is None.

    Args:
        argument: Name of the argument, for the message.
        value: The given function, or None.

    Raises:
        TypeError: ``value`` is neither.

    >>> callable_or_none("transform", 3)
    Traceback (most recent call last):
    ...
    TypeError: transform must be a function, but got 3 of type int. Pass a callable object, or omit transform.
    """
    if value is not None and not callable(value):
        raise TypeError(
            f"{argument} must be a function, but got {value!r} of type {type(value).__name__}. Pass a callable object, "
            f"or omit {argument}."
        )
    return value


def printable(text: str) -> str:
    """Return a text that is safe to print on a terminal: control characters are replaced by escape sequences.

    Args:
        text: One line of text, such as a name from a program, a file or a network.

    >>> printable("weight\x1b[2J")
    'weight\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def dtype_name(dtype: object) -> str:
    """Return the name of a ``torch.dtype`` without its module.

    Args:
        dtype: The dtype.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def plural(n: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is one.

    Args:
        n: The count.
        noun: The noun in the singular, with a regular plural.

    >>> plural(1, "rank"), plural(3, "rank")
    ('1 rank', '3 ranks')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def shortened(text: str, length: int) -> str:
    """Return a text without its middle if it is too long, since names differ at their ends.

    Args:
        text: The text.
        length: The largest number of characters.

    >>> shortened("runs/night/log", 8)
    'runs…log'
    """
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}…{text[len(text) - half + 1 :]}"


def word_set(text: str) -> frozenset[str]:
    """Return the set of words in a text, for tables of names.

    Args:
        text: Words separated by spaces or line breaks.

    >>> sorted(word_set("loss error"))
    ['error', 'loss']
    """
    return frozenset(text.split())


def first_of(names: Sequence[str]) -> str:
    """Return the first five names, and the number of others.

    Args:
        names: The names.

    >>> first_of(["a", "b"]), first_of(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 others')
    """
    return ", ".join(names[:5]) + (f" and {plural(len(names) - 5, 'other')}" if len(names) > 5 else "")


def _not_one_of(argument: str, value: object, allowed: Sequence[object]) -> ValueError:
    hint = did_you_mean(value, [c for c in allowed if isinstance(c, str)]) if isinstance(value, str) else ""
    listed = ", ".join(repr(choice) for choice in allowed)
    return ValueError(f"{argument} must be one of {listed}, but got {value!r}.{hint}")
