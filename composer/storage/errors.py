"""What can go wrong with files elsewhere, and what is worth another attempt."""

from __future__ import annotations

from typing import Final

__all__ = ["ObjectStoreTransientError", "is_transient"]


class ObjectStoreTransientError(RuntimeError):
    """A transfer failed in a way that the next attempt may not.

    >>> is_transient(ObjectStoreTransientError("half of it has arrived"))
    True
    """


# What the server or this machine will say again. ValueError has the refusal of certificates among its kinds.
_PERMANENT: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    NotImplementedError,
    TypeError,
    ValueError,
)
# The same in the words of the clients, which are not imported to ask for them.
_PERMANENT_NAMES: Final = frozenset(
    {
        "AuthenticationException",
        "BadHostKeyException",
        "ClientAuthenticationError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "RefreshError",
        "UnknownHostKeyError",
    }
)


# Of the answers that blame the client, those that blame its pace: not in time, too early, too often.
_RETRYABLE_STATUS: Final = frozenset({408, 425, 429})


def is_transient(error: BaseException) -> bool:
    """Tell whether another attempt may succeed: not where something is absent, refused or asked for wrongly.

    Args:
        error: What a transfer raised.

    >>> is_transient(ConnectionResetError()), is_transient(PermissionError())
    (True, False)
    """
    if isinstance(error, _PERMANENT) or not isinstance(error, Exception):
        return False
    status = _status(error)
    if status is not None and 400 <= status < 500 and status not in _RETRYABLE_STATUS:
        return False
    return not _PERMANENT_NAMES.intersection(base.__name__ for base in type(error).__mro__)


def _status(error: Exception) -> int | None:
    """What a server has answered, where the client tells: each has another name for it."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(source, name, None)
            if isinstance(value, int):
                return value
    # All that the client of Google's storage leaves of it.
    return 403 if type(error) is OSError and str(error).startswith("Forbidden") else None
