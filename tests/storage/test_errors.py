from __future__ import annotations

import ssl
from types import SimpleNamespace

import pytest

from composer.storage.errors import ObjectStoreTransientError, is_transient


class NoCredentialsError(Exception):
    """Named as that of a client."""


class AnswerError(Exception):
    """What clients raise when a server says no."""

    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)


class _TypedError(NoCredentialsError):
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
        *(AnswerError(status_code=status) for status in (408, 429, 500, 503)),
        AnswerError(code=503),
        AnswerError(response=SimpleNamespace(status_code=502)),
    ],
)
def test_retryable_errors(error) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        FileExistsError(),
        ValueError(),
        ssl.SSLCertVerificationError(),
        _TypedError(),
        KeyboardInterrupt(),
        *(AnswerError(status_code=status) for status in (400, 401, 403, 404, 412)),
        AnswerError(status=404),
        AnswerError(code=403),
        AnswerError(response=SimpleNamespace(status_code=401)),
        OSError("Forbidden: bucket/run"),
    ],
)
def test_errors_that_are_not_retryable(error) -> None:
    assert not is_transient(error)
