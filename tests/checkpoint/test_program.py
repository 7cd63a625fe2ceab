"""A checkpoint records the program that started the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from composer.checkpoint import save_checkpoint
from composer.checkpoint.at_step import facts_of
from composer.checkpoint.file_format import DamagedCheckpointError
from composer.checkpoint.program import program_of_process
from composer.core.state import State
from tests.common import Regression
from tests.design import ROOT

PRINT = """
import json
from composer.checkpoint.program import program_of_process
print(json.dumps(program_of_process()))
"""


def told(folder: Path, *command: str) -> dict[str, object] | None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_script_module_and_neither(tmp_path):
    (tmp_path / "train.py").write_text(PRINT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PRINT)
    arguments = ["--lr", "0.1", "--api-key", "hunter2", "sftp://me:hunter2@host/x"]
    masked = ["--lr", "0.1", "--api-key", "***", "sftp://me:***@host/x"]
    found = told(tmp_path, "train.py", *arguments)
    assert found == {
        "kind": "script",
        "name": str(tmp_path / "train.py"),
        "arguments": masked,
        "folder": str(tmp_path),
    }
    found = told(tmp_path, "-m", "package", "3")
    assert found == {"kind": "module", "name": "package", "arguments": ["3"], "folder": str(tmp_path)}
    assert told(tmp_path, "-c", PRINT, "3") is None


def test_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert program_of_process() is None
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<ipython-input-3>", raising=False)
    assert program_of_process() is None


def test_checkpoints_have_it(tmp_path, monkeypatch):
    def saved(**arguments: bool) -> object:
        path = save_checkpoint(State(model=Regression()), str(tmp_path / "ba0.pt"), **arguments)
        assert path is not None
        return facts_of(path).program

    script = ModuleType("__main__")
    script.__file__ = __file__  # the processes of pytest-xdist are no program
    monkeypatch.setitem(sys.modules, "__main__", script)
    program = program_of_process()
    assert saved() == program is not None
    assert saved(weights_only=True) is None  # these are given to others
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert saved() is None


def test_a_program_of_another_type_is_damage(tmp_path):
    torch.save({"state": {"model": {}, "program": "rm -rf"}}, tmp_path / "ba3.pt")
    with pytest.raises(DamagedCheckpointError, match="'state/program' is str"):
        facts_of(str(tmp_path / "ba3.pt"))
