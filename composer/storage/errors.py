"""Decide which storage errors are transient and worth a retry."""

from __future__ import annotations

from typing import Final

__all__ = ["ObjectStoreTransientError", "is_transient"]


class ObjectStoreTransientError(RuntimeError):
    """A transfer failed, but a retry may succeed.

    >>> is_transient(ObjectStoreTransientError("half of it has arrived"))
    True
    """


# Errors that a retry does not fix. Rejected certificates are a subclass of ValueError.
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
# Permanent errors of client libraries, by name, so that the libraries need not be imported.
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


# 4xx statuses that a retry may fix: request timeout, too early, too many requests.
_RETRYABLE_STATUS: Final = frozenset({408, 425, 429})


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed; false if something is missing, denied or invalid.

    Args:
        error: The exception of a transfer.

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
    """Return the HTTP status of an error, which each client library names differently."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(source, name, None)
            if isinstance(value, int):
                return value
    # The client of Google Cloud Storage only leaves the text.
    return 403 if type(error) is OSError and str(error).startswith("Forbidden") else None
