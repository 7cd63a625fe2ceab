from __future__ import annotations

import pytest

from benchmarks.kept import without_folder


@pytest.mark.parametrize("folder", ["'/data/records/digits-1/runs'", '"/data/it\'s/runs"'])
def test_a_published_command_has_no_folder_of_this_machine(folder: str) -> None:
    command = f"composer.explore(tasks:digits, seed=100, folder={folder}, clock='cpu')"
    assert without_folder(command) == "composer.explore(tasks:digits, seed=100, folder='FOLDER', clock='cpu')"
