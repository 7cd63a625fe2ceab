from __future__ import annotations

import json

import pytest
import torch

import composer.core
from composer.core import JSON, Batch, Dataset, MemoryFormat, TrainerMode
from composer.core.algorithm_trace import Trace


@pytest.mark.parametrize("format", list(MemoryFormat))
def test_memory_formats_match_torch(format):
    assert isinstance(getattr(torch, format.value), torch.memory_format)
    assert MemoryFormat(format.value) is format


def test_aliases():
    assert Dataset is torch.utils.data.Dataset
    assert Batch is not None
    assert JSON is not None
    assert json.dumps(MemoryFormat.CHANNELS_LAST) == '"channels_last"'


def test_modes():
    assert [mode.value for mode in TrainerMode] == ["train", "eval", "predict"]
    assert TrainerMode.EVAL == "eval"


def test_an_empty_trace():
    assert Trace() == Trace(name="", event=None, exit_code=None, order=None, run=False)
    with pytest.raises(AttributeError):
        Trace().other = 1


def test_every_name_of_the_package_resolves():
    for name in composer.core.__all__:
        assert getattr(composer.core, name) is not None
    assert set(composer.core.__all__) <= set(dir(composer.core))
