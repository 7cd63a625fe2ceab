from __future__ import annotations

import ssl

import pytest

from composer.storage.errors import ObjectStoreTransientError, is_transient


class NoCredentialsError(Exception):
    """Named as that of a client."""


class _KindError(NoCredentialsError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        OSError(5, "Input/output error"),
        ObjectStoreTransientError(),
        EOFError(),
        RuntimeError("503"),
    ],
)
def test_worth_another_attempt(error) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        FileExistsError(),
        ValueError(),
        ssl.SSLCertVerificationError(),
        _KindError(),
        KeyboardInterrupt(),
    ],
)
def test_not_worth_another_attempt(error) -> None:
    assert not is_transient(error)
