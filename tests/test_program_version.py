from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from composer.program_version import commit_of, program_version

ONE, TWO = "1" * 40, "2" * 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text(f"{ONE}\n")
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{TWO} refs/heads/old\n^{ONE}\n")
    (tmp_path / "deep/er").mkdir(parents=True)
    return tmp_path


def test_commits_of_branches_and_worktrees(repository: Path) -> None:
    assert commit_of(repository / "deep/er") == ONE
    (repository / ".git/HEAD").write_text("ref: refs/heads/old\n")
    assert commit_of(repository) == TWO
    work = repository / ".git/worktrees/wt"
    work.mkdir(parents=True)
    (work / "HEAD").write_text("ref: refs/heads/main\n")
    (work / "commondir").write_text("../..\n")
    (repository / "deep/.git").write_text(f"gitdir: {work}\n")
    assert commit_of(repository / "deep/er") == ONE


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../secret", "<b>", "\xff" * 40])
def test_damaged_repositories_have_no_commit(repository: Path, head: str) -> None:
    (repository / ".git/HEAD").write_text(head, encoding="latin-1")
    assert commit_of(repository) is None


def test_the_script_is_hashed(repository: Path, monkeypatch: Any) -> None:
    script = repository / "train.py"
    script.write_text("pass")
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert program_version() == {}  # a notebook
    main.__file__ = str(script)
    sha256 = hashlib.sha256(b"pass").hexdigest()
    assert program_version() == {"script": "train.py", "script_sha256": sha256, "commit": ONE}
    main.__file__ = str(repository / "gone.py")
    assert program_version() == {}
