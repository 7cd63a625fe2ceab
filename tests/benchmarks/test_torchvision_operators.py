"""Naming torchvision's operators: once, however often Python reads the .pth file that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks import torchvision_operators


@pytest.fixture(autouse=True)
def _same_finders() -> Iterator[None]:
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders


def test_installing_twice_defines_the_operators_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defined: list[int] = []
    monkeypatch.setattr(torchvision_operators, "_define", lambda: defined.append(1))
    torchvision_operators.install()
    torchvision_operators.install()
    for finder in list(sys.meta_path):
        if finder is torchvision_operators._Finder:
            finder.find_spec("torchvision")
    assert defined == [1]
    assert torchvision_operators._Finder not in sys.meta_path
