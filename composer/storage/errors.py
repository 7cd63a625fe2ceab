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
_LASTING: Final = (
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
_LASTING_NAMES: Final = frozenset(
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


def is_transient(error: BaseException) -> bool:
    """Tell whether another attempt may succeed: not where something is absent, refused or asked for wrongly.

    Args:
        error: What a transfer raised.

    >>> is_transient(ConnectionResetError()), is_transient(PermissionError())
    (True, False)
    """
    if isinstance(error, _LASTING) or not isinstance(error, Exception):
        return False
    return not _LASTING_NAMES.intersection(kind.__name__ for kind in type(error).__mro__)
