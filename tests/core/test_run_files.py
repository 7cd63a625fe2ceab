from __future__ import annotations

from composer.core.run_files import set_aside


def test_set_aside(tmp_path) -> None:
    path = tmp_path / "run.txt"
    path.touch()
    assert set_aside(path, copy=True) == tmp_path / "run.1.txt"
    assert path.exists()
    assert set_aside(path) == tmp_path / "run.2.txt"
    assert not path.exists()
