"""The folder and the fork server of the trials of one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.trials import Study, Trial
from composer.trials.workspace import workspace
from tests.trials.programs import PROBE, script


def test_temporary_folder_ends_with_the_call(tmp_path: Path) -> None:
    """Trials run in the workspace; its own folder is removed afterwards, and one that was given is kept."""
    trial = Trial("one", script(tmp_path / "program", "trainer().fit()"), PROBE)
    with workspace(None, [PROBE]) as (folder, server):
        record = Study(folder, server=server).run([trial])["one"]
        assert record.is_completed, record.details
        assert any(folder.iterdir())
    assert not folder.exists()
    with workspace(tmp_path / "kept", []) as (folder, server):
        Study(folder, server=server).run([trial])
    assert any((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("name", ["file", "file/records"])
def test_a_folder_that_cannot_hold_records_is_refused_first(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(
            ValueError, match=rf"folder='.*{name}' cannot hold records: .*\. Name a folder that can be written"
        ),
        workspace(tmp_path / name, []),
    ):
        pytest.fail("nothing may run")
