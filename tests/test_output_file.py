"""Files that commands will write are checked first."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer._output_file import output_file


def test_files_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    assert output_file("trace", tmp_path / "x.json") == tmp_path / "x.json"
    with pytest.raises(ValueError, match="is a folder"):
        output_file("trace", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"trace=.*Create it first"):
        output_file("trace", tmp_path / "no" / "x.json")
