"""Names that published projects import from Composer 0.32 exist."""

from __future__ import annotations

import importlib

import pytest

from tests import apart
from tests.predecessor import FACTS


def _lines(name: str) -> list[str]:
    return [line for line in (FACTS / name).read_text().splitlines() if line and not line.startswith("#")]


@pytest.fixture(autouse=True)
def _optional_packages() -> None:
    apart.make_importable()


@pytest.mark.parametrize("line", _lines("surface.txt"))
def test_imports_of_published_projects(line: str) -> None:
    names: dict[str, object] = {}
    exec(line, names)
    assert names[line.split()[-1]] is not None


@pytest.mark.parametrize("line", _lines("modules.txt"))
def test_older_homes_of_names(line: str) -> None:
    module, _, names = line.partition(": ")
    home = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(home, name)] == []
