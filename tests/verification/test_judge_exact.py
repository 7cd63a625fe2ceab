"""The judgment of runs that must be equal bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer.trials.trial import Record
from composer.verification._judge_exact import judge_hashes
from composer.verification.compare import STAGES, STEPS_FILE
from composer.verification.findings import Finding

FOUND = Finding("same", "failed", "two equal runs differ", "data_order", "Files", evidence=("Files uses time",))


def record(folder: Path, samples: str, initial: int = 1, error: str = "") -> Record:
    """The record of a run of one step."""
    step: dict[str, Any] = {"step": 0, **{stage: {} for stage in STAGES}, "samples": [[samples]]}
    folder.mkdir()
    (folder / STEPS_FILE).write_text(json.dumps({"initial": {"w": initial}, "steps": [step]}))
    return Record(folder.name, "0f", "failed" if error else "completed", 1.0, error, folder=str(folder))


@pytest.mark.parametrize(
    ("samples", "initial", "cause"), [("a", 1, "order_by_hash"), ("b", 1, "data_order"), ("a", 2, "data_order")]
)
def test_runs_with_the_same_hashes_tell_whether_these_are_the_cause(
    tmp_path: Path, samples: str, initial: int, cause: str
) -> None:
    found = judge_hashes(FOUND, record(tmp_path / "one", "a"), record(tmp_path / "other", samples, initial))
    assert found.cause == cause
    assert (found == FOUND) == (cause == "data_order")


def test_a_run_that_fails_with_the_same_hashes_is_told(tmp_path: Path) -> None:
    failing = record(tmp_path / "other", "a", error="it did not end")
    found = judge_hashes(FOUND, record(tmp_path / "one", "a"), failing)
    assert found.cause == "data_order"
    assert "it did not end" in found.evidence[-1]
