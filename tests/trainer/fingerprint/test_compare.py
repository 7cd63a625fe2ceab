"""The texts about what is not as in the run."""

from __future__ import annotations

from typing import Any

import pytest

from composer.trainer.fingerprint.compare import Difference, RunChangedError, differences, report_differences
from composer.warnings import ComposerWarning


def told(expected: Any, found: Any, name: str = "data") -> list[tuple[str, bool]]:
    def entry(parts: Any) -> Any:
        return {"data": {"batch": 0, "parts": parts}} if name == "data" else {name: parts}

    return [(str(one), one.is_certain) for one in differences(entry(expected), entry(found))]


@pytest.mark.parametrize(
    ("expected", "found", "text", "is_certain"),
    [
        (["list of 5", "ab"], ["list of 5", "cd"], "x (list of 5) has other elements", True),
        (["list of 5", "ab"], ["list of 6", "cd"], "x is list of 6, in the run list of 5", True),
        (["setting", "32"], ["setting", "64"], "x is 64, in the run 32", True),
        (["number", "0.1"], ["number", "0.2"], "x is 0.2, in the run 0.1", False),
        (["text", "ab"], ["text", "cd"], "x is another text", False),
        (["object", "Subset"], ["object", "MNIST"], "x is MNIST, in the run Subset", True),
        (["number", "None"], ["list of 5", "cd"], "x is list of 5, in the run None", False),
        (["dict of 0", "ab"], ["dict of 5", "cd"], "x is dict of 5, in the run dict of 0", False),
        (["list of 5", "cd"], ["object", "Rows"], "x is Rows, in the run list of 5", True),
    ],
)
def test_data(expected, found, text, is_certain) -> None:
    assert told({"x": expected}, {"x": found}) == [(text, is_certain)]
    assert told({"x": expected}, {"x": expected, "y": found}) == []
    assert told({"x": expected}, {}) == []


def test_sources() -> None:
    run = {"__main__": ["train.py", "1"], "lib.net": ["net.py", "2"], "gone": ["gone.py", "3"]}
    assert told(run, {"__main__": ["other.py", "1"], "lib.net": ["net.py", "2"]}, "sources") == []
    assert told(run, {"__main__": ["debug.py", "9"], "train": ["train.py", "1"]}, "sources") == []
    changed = told(run, {"__main__": ["train.py", "9"], "lib.net": ["net.py", "8"]}, "sources")
    assert changed == [("train.py has changed", False), ("lib.net has changed", False)]


def test_weights() -> None:
    run, other = ({"weights": {"batch": 0, "digests": digests}} for digests in ("a" * 16, "a" * 8 + "b" * 8))
    assert [str(one) for one in differences(run, other, ["w"])] == ["tensor 1 differs"]
    assert differences(run, other, at=5) == []
    assert differences(run, {"weights": {**other["weights"], "batch": 5}}) == []
    shorter = {"weights": {"batch": 0, "digests": "a" * 8}}
    assert "has 1 parameter or buffer, in the run 2" in str(differences(run, shorter)[0])


def test_many_differences_are_counted() -> None:
    many = [Difference("data", f"dataset.{index}", "differs") for index in range(9)]
    with pytest.raises(RunChangedError, match=r"dataset\.2 differs, and 6 more\."):
        report_differences(many, "seed 1", raises=True, advice="")
    with pytest.warns(ComposerWarning, match="and 6 more"):
        report_differences(many, "seed 1", raises=False, advice="")
    report_differences([], "seed 1", raises=True, advice="")
