from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.storage.retrying import call_with_retries, retry


def failing(times: int, error: type[Exception] = ConnectionError):
    calls: list[int] = []

    def function() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error(f"failure {len(calls)}")
        return len(calls)

    return function, calls


@given(failures=st.integers(0, 6), attempts=st.integers(1, 6), backoff=st.floats(0, 10))
def test_calls_and_pauses(failures: int, attempts: int, backoff: float) -> None:
    """There are as many calls as needed and allowed; each pause is twice the one before."""
    function, calls = failing(failures)
    pauses: list[float] = []
    if failures < attempts:
        assert call_with_retries(function, lambda error: True, attempts, backoff, 0.0, pauses.append) == failures + 1
    else:
        with pytest.raises(ConnectionError, match=f"failure {attempts}"):
            call_with_retries(function, lambda error: True, attempts, backoff, 0.0, pauses.append)
    assert len(calls) == min(failures + 1, attempts)
    assert pauses == [backoff * 2**k for k in range(len(calls) - 1)]


def test_other_errors_are_raised_at_once() -> None:
    function, calls = failing(2, KeyError)
    with pytest.raises(KeyError):
        retry(ConnectionError)(function)()
    assert len(calls) == 1


def test_last_error_reports_the_attempts() -> None:
    function, _ = failing(9)
    with pytest.raises(ConnectionError) as caught:
        retry(ConnectionError, num_attempts=3, initial_backoff=0, max_jitter=0)(function)()
    assert caught.value.__notes__ == ["This was attempt 3 of 3."]


def test_bare_decorator_and_multiple_error_types() -> None:
    function, calls = failing(2)
    assert retry(function)() == 3
    assert len(calls) == 3
    function, _ = failing(1, KeyError)
    assert retry((ConnectionError, KeyError), initial_backoff=0, max_jitter=0)(function)() == 2


def test_jitter_does_not_use_the_global_random_state(monkeypatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("composer.storage.retrying.sleep", pauses.append)
    random.seed(3)
    expected = random.Random(3).random()
    function, _ = failing(1)
    call_with_retries(function, lambda error: True, 2, 1.0, 0.5, pauses.append)
    assert random.random() == expected
    assert 1 <= pauses[0] <= 1.5


@pytest.mark.parametrize("arguments", [{"num_attempts": 0}, {"initial_backoff": -1}, {"max_jitter": -1}])
def test_invalid_arguments(arguments) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        retry(**arguments)
