"""Records on the disk: what was written is read, whatever happened to the file."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from composer.trials import Record, Target, Trial
from composer.trials.records import Records

ONE = Record("a", "0f", "completed", 1.5, result={"steps": [1, 2]}, sources={"train.py": "00"})
TWO = Record("b", "1f", "failed", 2.5, error="zwei\nZeilen \u2028 ü", details="…")


def test_records_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trials.jsonl"
    records = Records(path)
    records.add(ONE)
    records.add(TWO)
    newer = Record("a", "0f", "failed", 0.5)
    records.add(newer)
    again = Records(path)
    assert (again.get("0f"), again.get("1f"), again.get("2f")) == (newer, TWO, None)


def test_a_torn_line_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Records(path).add(ONE)
    Records(path).add(TWO)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole), 7):
        path.write_bytes(whole[:end])
        Records(path).add(Record("c", "2f", "completed", 1.0))
        found = Records(path)
        assert found.get("0f") == ONE
        assert found.get("2f") is not None
        assert found.get("1f") is None or end >= len(whole) - 1


def test_lines_of_others_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Records(path).add(ONE)
    with path.open("ab") as file:
        file.write(b'5\nnull\n[]\n{}\n{"name": "x"}\n\xff\xfe\0\n')
    assert Records(path).get("0f") == ONE


@given(st.lists(st.text(), max_size=3), st.integers(1, 8), st.floats(0.1, 1e6))
def test_trials_survive_json(arguments: list[str], ranks: int, limit: float) -> None:
    trial = Trial("a", Target("script", "no.py", tuple(arguments)), "p:P", {"x": 1}, ("a=1",), ranks, limit, ("b",))
    assert Trial.from_json(trial.to_json()) == trial
    assert Trial.from_json(trial.to_json()).key == trial.key
