"""Mask secrets in logs, errors and files: passwords in URIs, tokens, and values of keys such as ``api_key``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, TypeVar, cast

from composer._secrets.names import Secrecy, is_data, secrecy_of
from composer._secrets.texts import MASK, is_reference, mask_text

__all__ = ["MASK", "is_masked", "mask_error", "mask_text", "mask_values", "secrets_in"]


Error = TypeVar("Error", bound=BaseException)

_MASKED: Final = re.compile(r"(?:^|[\s:/=?&;,'\"(])\*\*\*(?:$|[\s@&;,'\")#])")
_DEEPEST: Final = 50
_PLURALS: Final = ("keys", "tokens")  # secrets of several services, by name, or the words of a text
_NAME: Final = re.compile(r"[A-Za-z_][\w.\-]*")


def mask_values(values: Any) -> Any:
    """Return plain values, such as hyperparameters or a configuration, with secrets replaced by ``***``.

    Strings are masked by :func:`mask_text`. A string whose key names a secret (see :func:`.secrecy_of`) is masked
    entirely, at any depth of mappings, lists and objects with attributes. References such as ``${NAME}`` and ``$NAME``
    are kept.

    Args:
        values: Mappings, lists and plain values; not modified.

    >>> mask_values({"loggers": [{"api_key": "abc", "host": "https://me:abc@host"}], "input_key": "image"})
    {'loggers': [{'api_key': '***', 'host': 'https://me:***@host'}], 'input_key': 'image'}
    """
    return _Masking(mask_text).of(values, Secrecy.NONE)


def secrets_in(values: Any) -> frozenset[str]:
    """Return the secrets that :func:`mask_values` would mask, so that they can also be masked in other texts.

    Args:
        values: A URI, or plain values that contain URIs and secrets.

    >>> sorted(secrets_in({"folder": "sftp://me:a%20bc@host/x", "api_key": "defg", "seed": 1}))
    ['a bc', 'a%20bc', 'defg']
    """
    from urllib.parse import unquote

    found: list[str] = []

    def note(text: str) -> str:
        # The difference between the two is what the mask replaces.
        masked = mask_text(text)
        if masked != text:
            pattern = re.escape(masked).replace(re.escape(MASK), "(.+?)")
            if (parts := re.fullmatch(pattern, text, re.S)) is not None:
                found.extend(parts.groups())
        return masked

    _Masking(note, found.append).of(values, Secrecy.NONE)
    return frozenset(one for secret in found for one in (secret, unquote(secret)) if one and one != MASK)


def is_masked(value: object) -> bool:
    """Return whether a value is, or contains, the mask that :func:`mask_values` puts in place of a secret.

    Args:
        value: The value.

    >>> is_masked("***"), is_masked("sftp://me:***@host"), is_masked("layers.***.weight"), is_masked(3)
    (True, True, False, False)
    """
    return isinstance(value, str) and _MASKED.search(value) is not None


def mask_error(error: Error, known: Iterable[str] = ()) -> Error:
    """Mask the arguments and notes of an exception, of its causes and of its context, in place; return it.

    The message of a group cannot be changed: one with a secret in it is replaced by a new group of the same exceptions,
    so raise what is returned.

    Args:
        error: The exception; modified in place.
        known: As for :func:`mask_text`.

    >>> str(mask_error(FileNotFoundError(2, "No such file", "sftp://me:hunter2@host/x")))
    "[Errno 2] No such file: 'sftp://me:***@host/x'"
    """
    known = frozenset(known)
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[Any]", one).exceptions
        _mask_one(one, known)
        for name in ("__cause__", "__context__"):
            if isinstance(inner := getattr(one, name), BaseExceptionGroup):
                suppressed = one.__suppress_context__  # which a new cause would change
                setattr(one, name, _group(cast("BaseExceptionGroup[Any]", inner), known))
                one.__suppress_context__ = suppressed
    return cast("Error", _group(cast("BaseExceptionGroup[Any]", error), known)) if _is_group(error) else error


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


def _group(group: BaseExceptionGroup[Any], known: frozenset[str], depth: int = 0) -> BaseExceptionGroup[Any]:
    """Return a group with masked messages, also of nested groups; the same group if there are no secrets.

    Args:
        group: The group.
        known: Known secrets.
        depth: Nesting depth of the group.
    """
    inner = [
        _group(cast("BaseExceptionGroup[Any]", one), known, depth + 1) if _is_group(one) and depth < _DEEPEST else one
        for one in group.exceptions
    ]
    message = mask_text(group.message, known)
    if message == group.message and all(new is old for new, old in zip(inner, group.exceptions, strict=True)):
        return group
    # A custom class may have an initializer with other arguments.
    made = cast("Any", type(group)).__new__(type(group), message, inner)
    vars(made).update(vars(group))
    made.__traceback__, made.__cause__, made.__context__ = group.__traceback__, group.__cause__, group.__context__
    made.__suppress_context__ = group.__suppress_context__
    return made


def _mask_one(error: BaseException, known: frozenset[str]) -> None:
    def mask(value: object) -> object:
        return _Masking(lambda text: mask_text(text, known)).of(value, Secrecy.NONE)

    is_group = isinstance(error, BaseExceptionGroup)  # whose message cannot be changed
    if not is_group:
        error.args = tuple(mask(value) for value in error.args)
    # Some classes also store their message in other attributes.
    for name in ("filename", "filename2", "msg", "strerror", "text", "__notes__", *vars(error)):
        value = getattr(error, name, None)
        if isinstance(value, (str, bytes, list, dict)) and (masked := mask(value)) != value:
            setattr(error, name, masked)
    shown = str(error)
    if (masked_text := mask_text(shown, known)) != shown and not is_group:
        # The message is built from other state, such as a server's response: override __str__ in a subclass.
        cls = type(error)
        members = {"__str__": lambda self: masked_text, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        error.__class__ = type(cls.__name__, (cls,), members)


class _Masking:
    """Masks nested values recursively.

    Args:
        of_text: Masks a string whose key does not name a secret.
        note: Called with each value that is masked because of its key.
    """

    def __init__(self, of_text: Callable[[str], str], note: Callable[[str], object] | None = None) -> None:
        self._of_text = of_text
        self._note = note
        self._inside: list[int] = []

    def of(self, value: Any, secrecy: Secrecy) -> Any:
        """Return the masked value; ``secrecy`` is that of its key."""
        if isinstance(value, str):
            return self._text(value, secrecy)
        if isinstance(value, bytes):
            decoded = value.decode("utf-8", "surrogateescape")
            masked = self._text(decoded, secrecy)
            return value if masked == decoded else masked.encode("utf-8", "surrogateescape")
        if isinstance(value, PurePath):
            masked = self._text(str(value), secrecy)
            return value if masked == str(value) else masked
        if value is None or isinstance(value, (bool, type)) or callable(value):
            return value
        if isinstance(value, (int, float)):
            return self._hidden(str(value)) if secrecy is Secrecy.ANY else value
        if id(value) in self._inside or len(self._inside) >= _DEEPEST:
            return value
        self._inside.append(id(value))
        try:
            return self._container(value, secrecy)
        finally:
            self._inside.pop()

    def _container(self, value: Any, secrecy: Secrecy) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), secrecy)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            made = self._mapping(dict(zip(cast("Any", value)._fields, value, strict=True)), secrecy)
            return value if tuple(made.values()) == value else cast("Any", type(value))._make(made.values())
        if isinstance(value, (list, tuple, set, frozenset)):
            many = list(cast("Iterable[Any]", value))
            masked = [self.of(entry, max(secrecy, _named_by_neighbor(many, i))) for i, entry in enumerate(many)]
            if all(new is old or new == old for new, old in zip(masked, many, strict=True)):
                return value
            return tuple(masked) if isinstance(value, tuple) else masked
        attributes = getattr(value, "__dict__", None)
        if not attributes or hasattr(value, "shape") or type(value).__module__.partition(".")[0] in ("torch", "numpy"):
            return value
        masked = self._mapping(attributes, secrecy)
        changed = any(masked[name] is not entry and masked[name] != entry for name, entry in attributes.items())
        return {"class": type(value).__qualname__, **masked} if changed else value

    def _mapping(self, value: Mapping[Any, Any], secrecy: Secrecy) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        # {name: HF_TOKEN, value: ...}, as services list environment variables and headers.
        named_by = next((key for key in ("name", "key") if "value" in value and isinstance(value.get(key), str)), None)
        for key, entry in value.items():
            own = secrecy_of(key)
            if key == "class_path" or (key == named_by and _NAME.fullmatch(str(entry)) and not _is_opaque(entry)):
                own = Secrecy.NONE
            elif key == "value" and named_by is not None:
                own = max(secrecy_of(value[named_by]), secrecy)
            elif secrecy is Secrecy.ANY or (key in _PLURALS and isinstance(entry, Mapping)):
                own = Secrecy.ANY
            elif key in _PLURALS and isinstance(entry, (list, tuple)):
                entry = [self._hidden(one) if _is_opaque(one) else one for one in cast("list[Any]", entry)]
            elif isinstance(key, str) and isinstance(entry, str) and is_data(key, entry):
                own = Secrecy.NONE
            made[key if not isinstance(key, str) else self._of_text(key)] = self.of(entry, own)
        return made

    def _text(self, text: str, secrecy: Secrecy) -> str:
        if secrecy is Secrecy.NONE or is_reference(text):
            return self._of_text(text)
        return self._hidden(text)

    def _hidden(self, text: str) -> str:
        if self._note is not None:
            self._note(text)
        return MASK


def _is_opaque(value: object) -> bool:
    """Return whether a text is a token rather than a word or the name of a column."""
    return isinstance(value, str) and re.fullmatch(r"(?=.*\d)\S{16,}", value) is not None


def _named_by_neighbor(entries: list[Any], index: int) -> Secrecy:
    """Return the secrecy implied by the preceding entry: ``["--api_key", "abc"]``, ``("Authorization", "abc")``."""
    before = entries[index - 1] if index else None
    if not isinstance(before, str) or re.fullmatch(r"[\w.\-]+", before) is None:
        return Secrecy.NONE
    if not (before.startswith("-") or (len(entries) == 2 and index == 1)):
        return Secrecy.NONE
    # In a pair, only a name that is certainly a secret counts: ["key", "value"] may be the names of two columns.
    found = secrecy_of(before)
    return found if before.startswith("-") or found is Secrecy.ANY else Secrecy.NONE
