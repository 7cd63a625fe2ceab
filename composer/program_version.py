"""Identify the version of a training program: its script, the hash of the script, and the commit of its repository."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

__all__ = ["commit_of", "program_version"]

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def program_version() -> dict[str, str]:
    """Return the name and SHA-256 of the script that runs, and the commit of the Git repository that it is in.

    What is not known is left out: a notebook has no script. Files that were changed after the commit are not looked
    for, except that the hash of the script changes with it.

    >>> program_version().keys() <= {"script", "script_sha256", "commit"}
    True
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str):
        return {}
    path = Path(file)
    try:
        found = {"script": path.name, "script_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        commit = commit_of(path.resolve().parent)
    except (OSError, ValueError):  # a script within an archive
        return {}
    return found if commit is None else found | {"commit": commit}


def commit_of(folder: Path) -> str | None:
    """Return the checked-out commit of the Git repository that a folder is in; None if it is in none.

    Only files are read, as the program git may be missing, or slow in a large repository.

    Args:
        folder: The folder.

    Raises:
        OSError: A file of the repository cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / ".git").mkdir()
    ...     _ = (Path(folder) / ".git" / "HEAD").write_text("0123456789" * 4)
    ...     commit_of(Path(folder))
    '0123456789012345678901234567890123456789'

    Specification: https://git-scm.com/docs/gitrepository-layout
    """
    git = next((one / ".git" for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if git is None:
        return None
    if git.is_file():  # a worktree or submodule
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    head = _text(git / "HEAD").strip()
    shared = git / _text(git / "commondir").strip()
    name = head.removeprefix("ref:").strip()
    if name != head and ".." not in name:
        head = _text(git / name).strip() or _text(shared / name).strip() or _packed(shared / "packed-refs", name)
    return head if _COMMIT.fullmatch(head) else None


def _packed(file: Path, name: str) -> str:
    """Return the commit of a reference in the file of packed references."""
    lines = (line.partition(" ") for line in _text(file).splitlines())
    return next((commit for commit, _, reference in lines if reference == name), "")


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
