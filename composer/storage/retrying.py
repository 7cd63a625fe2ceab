"""Retry failed calls with exponential backoff and jitter."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, ParamSpec, TypeVar, cast, overload

from composer._numbers import non_negative, whole_number

__all__ = ["call_with_retries", "retry"]

P = ParamSpec("P")
R = TypeVar("R")

# A separate generator, so that retries do not change the random state of the user.
_jitter = random.SystemRandom()


def call_with_retries(
    function: Callable[[], R],
    should_retry: Callable[[Exception], bool],
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
    pause: Callable[[float], object] | None = None,
) -> R:
    """Call a function until it succeeds, with a pause after each failure that doubles each time.

    Args:
        function: What to call.
        should_retry: Returns whether to retry after an exception.
        num_attempts: Maximum number of calls.
        initial_backoff: The first pause in seconds.
        max_jitter: Maximum random time in seconds that is added to a pause, so that many processes do not retry at the
            same time.
        pause: Waits for a number of seconds; None is :func:`time.sleep`.

    Raises:
        Exception: The exception of the last attempt.

    >>> responses = iter([None, "done"])
    >>> def request():
    ...     return next(responses) or {}["busy"]
    >>> call_with_retries(request, lambda error: isinstance(error, KeyError), pause=lambda seconds: None)
    'done'
    """
    attempt = 1
    while True:
        try:
            return function()
        except Exception as error:
            if attempt >= num_attempts or not should_retry(error):
                if attempt > 1:
                    error.add_note(f"This was attempt {attempt} of {num_attempts}.")
                raise
        (pause or sleep)(initial_backoff * 2 ** (attempt - 1) + _jitter.uniform(0, max_jitter))
        attempt += 1


@overload
def retry(exc_class: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def retry(
    exc_class: type[Exception] | Sequence[type[Exception]] = Exception,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def retry(
    exc_class: Any = Exception, num_attempts: int = 3, initial_backoff: float = 1.0, max_jitter: float = 0.5
) -> Any:
    """Decorate a function so that failed calls are retried; works with and without arguments.

    Args:
        exc_class: Exception class, or a sequence of classes, to retry on.
        num_attempts: Maximum number of calls.
        initial_backoff: The first pause in seconds; doubles with each attempt.
        max_jitter: Maximum random time in seconds that is added to a pause.

    Raises:
        ValueError: A number is out of its range.

    >>> calls = []
    >>> @retry(ConnectionError, num_attempts=3, initial_backoff=0, max_jitter=0)
    ... def fetch():
    ...     calls.append(1)
    ...     if len(calls) < 3:
    ...         raise ConnectionError
    ...     return "content"
    >>> fetch(), len(calls)
    ('content', 3)
    """
    if callable(exc_class) and not isinstance(exc_class, type):
        return retry()(cast("Callable[..., Any]", exc_class))
    exc_classes = (exc_class,) if isinstance(exc_class, type) else tuple(cast("Sequence[type[Exception]]", exc_class))
    num_attempts = whole_number("num_attempts", num_attempts, minimum=1)
    non_negative("initial_backoff", initial_backoff)
    non_negative("max_jitter", max_jitter)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return call_with_retries(
                lambda: function(*args, **kwargs),
                lambda error: isinstance(error, exc_classes),
                num_attempts,
                initial_backoff,
                max_jitter,
            )

        return call

    return decorate
