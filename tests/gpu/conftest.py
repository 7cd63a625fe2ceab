"""The device of these tests: a GPU with ``--device cuda``; in CI the CPU, on which those run that can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import on_device


@pytest.fixture
def accelerator() -> str:
    """The device as `Trainer` takes it."""
    return "cuda" if on_device.device().type == "cuda" else "cpu"


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """What one test compiled, recorded or took of the GPU's memory is no other test's."""
    yield
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.empty_cache()
