"""Files that commands will write are checked first."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer._output_file import output_file


def test_files_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert checked(path) == path
    with pytest.raises(ValueError, match="is a folder"):
        checked(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"trace=.*Create it first"):
        checked(tmp_path / "no" / "x.json")


def test_files_of_another_kind_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.touch()
    assert checked(path) == path
    path.write_text("{}")
    with pytest.raises(FileExistsError, match=r"trace=.*x.json' exists, and is not a trace\. Delete the file, or name"):
        checked(path)
    path.write_text("trace")
    assert checked(path) == path
    with pytest.raises(FileExistsError, match="/dev/null"):
        checked(Path("/dev/null"))


def test_a_link_is_followed(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    assert checked(link) == target
    target.write_text("{}")
    with pytest.raises(FileExistsError, match=r"trace=.*link' exists, and is not a trace"):
        checked(link)
    (tmp_path / "lost").symlink_to(tmp_path / "no" / "x")
    with pytest.raises(FileNotFoundError, match=r"lost': there is no folder '.*no'"):
        checked(tmp_path / "lost")


def checked(path: Path) -> Path:
    return output_file("trace", path, lambda file: file.is_file() and file.read_text() == "trace", "a trace")
