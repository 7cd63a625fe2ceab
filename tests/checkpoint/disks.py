"""Simulate full disks."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

STEPS = ("write", "fsync", "rename")


@contextlib.contextmanager
def full(step: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a step of writing a checkpoint fail as it does where the disk is full; "write" leaves half of the file."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(content: Any, file: Any) -> None:
        file.write(b"half of a checkpoint")
        refuse()

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(torch, "save", half)
        elif step == "fsync":
            patch.setattr(os, "fsync", refuse)
        else:
            patch.setattr(Path, "replace", refuse)
        yield
