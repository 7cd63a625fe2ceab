"""Note the exceptions of loggers, which become warnings while training goes on, and of threads."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from composer._secrets.masking import mask_text
from composer.core.logger import Logger, LoggerDestination
from composer.diagnosis.redirected_writes import RefusedConnectionError
from composer.diagnosis.user_lines import is_user_file

__all__ = ["OutputErrors", "distinct"]

# Different errors that are noted; what fails in each step fails with the same one.
_MOST = 20


class OutputErrors:
    """The exceptions of loggers and of threads: which, in which call, at which line, and how often.

    A connection that the trial has refused is no mistake of the logger: its name is in ``refused`` instead.

    Attributes:
        refused: Names of the loggers whose connections were refused.

    >>> errors = OutputErrors()
    >>> try:
    ...     {}["loss"]
    ... except KeyError as error:
    ...     errors.note("Board", None, error)
    >>> errors.to_json()[0]["source"], errors.to_json()[0]["error"], errors.to_json()[0]["count"]
    ('Board', "KeyError: 'loss'", 1)
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self._found: dict[tuple[str, ...], dict[str, Any]] = {}

    def note(self, source: str, owner: object, error: BaseException) -> None:
        """Note an exception.

        Args:
            source: Name of the logger or thread.
            owner: The logger, whose method is looked for; None for a thread.
            error: The exception.
        """
        if _is_refused(error):
            self.refused.add(source)
            return
        call, place = _call_and_place(error.__traceback__, owner)
        text = str(error).strip().partition("\n")[0]
        told = mask_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)
        key = (source, call, str(place), type(error).__name__)
        if key in self._found or len(self._found) < _MOST:
            self._found.setdefault(key, {"source": source, "call": call, **place, "error": told, "count": 0})[
                "count"
            ] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Return the exceptions in JSON types, in the order of their first occurrence."""
        return list(self._found.values())

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Note what loggers and threads raise in a ``with`` block; they are reported as always."""
        report, hook, note = Logger.report, threading.excepthook, self.note

        def noting_report(self: Logger, destination: LoggerDestination, error: Exception) -> None:
            note(type(destination).__name__, destination, error)
            report(self, destination, error)

        def noting_hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None and args.thread is not None:
                note(f"thread {args.thread.name}", None, args.exc_value)
            hook(args)

        Logger.report, threading.excepthook = noting_report, noting_hook
        try:
            yield
        finally:
            Logger.report, threading.excepthook = report, hook


def distinct(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the exceptions of all ranks; what several of them raised once, as often as the first one did.

    Args:
        results: What each rank measured, from rank 0.

    >>> distinct(
    ...     [{"errors": [{"source": "Board", "count": 2}]}, {"errors": [{"source": "Board", "count": 1}]}]
    ... )
    [{'source': 'Board', 'count': 2}]
    """
    found: dict[str, dict[str, Any]] = {}
    for each in (error for result in results for error in result["errors"]):
        found.setdefault(repr({**each, "count": 0}), each)
    return list(found.values())


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an exception comes from a connection that the trial has refused."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, RefusedConnectionError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _call_and_place(trace: TracebackType | None, owner: object) -> tuple[str, dict[str, Any]]:
    """Return the method of a logger that raised, and the innermost line of the user's code, or else of all."""
    call, own, last = "", None, None
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        last = (code.co_filename, line, code.co_qualname)
        if is_user_file(code.co_filename):
            own = last
        is_method = owner is not None and frame.f_locals.get("self") is owner and not code.co_name.startswith("_")
        if is_method and not call:
            call = code.co_name
    file, number, function = own or last or ("", 0, "")
    return call, {"file": file, "line": number, "in": function}
