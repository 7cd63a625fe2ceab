"""Save folders with conflicting files are rejected."""

from __future__ import annotations

import re

import pytest

from composer import Timestamp
from composer.checkpoint.folder_conflicts import ensure_folder_has_no_conflicting_files, ensure_folder_is_empty

TEMPLATE = "ep{epoch}-ba{batch}-rank{rank}.pt"


def test_an_empty_folder(tmp_path) -> None:
    ensure_folder_is_empty(tmp_path / "none")
    (tmp_path / "only" / "folders").mkdir(parents=True)
    ensure_folder_is_empty(tmp_path)
    (tmp_path / "only" / "file.pt").touch()
    with pytest.raises(FileExistsError, match=re.escape("'only/file.pt'")):
        ensure_folder_is_empty(tmp_path)


@pytest.mark.parametrize(
    ("template", "name", "now", "later"),
    [
        ("ep{epoch}.pt", "ep3.pt", {"epoch": 3}, False),
        ("ep{epoch}.pt", "ep3.pt", {"epoch": 2}, True),
        (TEMPLATE, "ep0-ba9-rank0.pt", {"epoch": 1, "batch": 9}, False),
        (TEMPLATE, "ep0-ba10-rank0.pt", {"epoch": 1, "batch": 9}, True),
        (TEMPLATE, "other-ba10-rank0.pt", {"batch": 9}, False),
        ("{batch:06d}.pt", "000010.pt", {"batch": 9}, True),
        ("{total_wct}-s{sample}.pt", "12.5-s10.pt", {"sample": 9}, True),
        ("fixed.pt", "fixed.pt", {}, False),
        # Batches within an epoch are comparable in the same epoch only.
        ("ep{epoch}-{batch_in_epoch}.pt", "ep0-9.pt", {"epoch": 1, "batch_in_epoch": 2}, False),
        ("ep{epoch}-{batch_in_epoch}.pt", "ep1-9.pt", {"epoch": 1, "batch_in_epoch": 2}, True),
        ("{batch_in_epoch}.pt", "9.pt", {"epoch": 1, "batch_in_epoch": 2}, True),
        ("{{ep}}{epoch}.pt", "{ep}3.pt", {"epoch": 2}, True),
        ("sub/ep{epoch}.pt", "sub/ep3.pt", {"epoch": 2}, True),
        ("sub/ep{epoch}.pt", "sub/ep3.pt", {"epoch": 3}, False),
        ("sub/ep{epoch}.pt", "ep3.pt", {"epoch": 2}, False),
        ("ep{epoch}/ba{batch}.pt", "ep3/ba9.pt", {"epoch": 3, "batch": 8}, True),
    ],
)
def test_files_of_a_later_time(template, name, now, later, tmp_path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    timestamp = Timestamp(**now)
    if not later:
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
        return
    with pytest.raises(FileExistsError, match=f"{re.escape(name)}' is later than this run.*save_overwrite=True"):
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
    ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp, except_for=[name])


def test_missing_folder_has_no_conflicts(tmp_path) -> None:
    ensure_folder_has_no_conflicting_files(tmp_path / "none", TEMPLATE, Timestamp())
