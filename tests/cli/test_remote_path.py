"""``composer_validate_remote_path``."""

from __future__ import annotations

import pytest

from composer.cli.remote_path import main
from composer.storage import Folder


def test_lists_remote_files(capsys) -> None:
    folder = Folder("memory://remote-path")
    folder.write_text("run/ep1.pt", "a")
    folder.write_text("run/ep2.pt", "b")
    folder.write_text("other.txt", "c")
    assert main(["memory://remote-path/run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["run/ep1.pt", "run/ep2.pt"]


@pytest.mark.parametrize(
    ("uri", "message"), [("some/path", "is a local path"), ("nosuchstore://bucket/run", "nosuchstore")]
)
def test_unreadable_paths(uri: str, message: str, capsys) -> None:
    assert main([uri]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"composer: {uri} cannot be read: ")
    assert message in error
