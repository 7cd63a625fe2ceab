from __future__ import annotations

import io
import math
import sys

import pytest
import torch

from composer.loggers._format import (
    checked_stream,
    clock,
    config_block,
    config_fields,
    format_log_data_value,
    open_stream,
)
from composer.loggers.logger import format_log_data_value as public_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"),
        (0.5, "0.5000"),
        (-12.34567, "-12.3457"),
        (1e-3, "0.0010"),
        (9.99e-4, "9.9900e-04"),
        (1e6, "1.0000e+06"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (7, "7"),
        (True, "True"),
        (None, "None"),
        ("word", "word"),
        (torch.tensor(2), "2"),
        (torch.tensor([[0.25]]), "0.2500"),
        (torch.zeros(3, 4), "Tensor of shape (3, 4)"),
        ([1, 0.5], "[1, 0.5000]"),
        ({"a": (1, "b")}, "{a: [1, b]}"),
    ],
)
def test_values(value, text) -> None:
    assert format_log_data_value(value) == text
    assert public_name is format_log_data_value


def test_numpy_numbers_are_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert format_log_data_value(np.float32(0.5)) == "0.5000"
    assert format_log_data_value(np.int64(5)) == "5"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (36_005, "10:00:05")]
)
def test_clock(seconds, text) -> None:
    assert clock(seconds) == text


def test_config() -> None:
    assert config_fields({"a": 1, "b": "x"}) == ["config", "a=1", "b=x"]
    nested = {"a": {"b": 1, "c": {}}}
    stars = "*" * 30
    assert config_fields(nested) == [config_block(nested)]
    assert config_block(nested) == f"{stars}\nConfig:\na:\n  b: 1\n  c: {{}}\n{stars}"
    assert config_fields({"long": "x" * 200})[0].startswith(stars)


def test_streams() -> None:
    file = io.StringIO()
    assert open_stream(checked_stream(file)) is file
    assert checked_stream(sys.stdout) == "stdout"
    assert checked_stream(sys.stderr) == "stderr"
    with pytest.raises(ValueError, match=r"stream must be one of .* but got 'stdrr'. Did you mean 'stderr'\?"):
        checked_stream("stdrr")
    with pytest.raises(TypeError, match="stream must be"):
        checked_stream(3)  # type: ignore[arg-type]


def test_a_named_stream_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = checked_stream(sys.stderr)
    replacement = io.StringIO()
    monkeypatch.setattr(sys, "stderr", replacement)
    assert open_stream(stream) is replacement
