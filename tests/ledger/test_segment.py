"""Lines of ledgers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.ledger import Position, Segment
from composer.ledger.category import MEASURED

SECONDS = st.dictionaries(st.sampled_from(MEASURED), st.integers(0, 10**8).map(lambda n: n / 100))
POSITIONS = st.builds(Position, st.text(max_size=5), SECONDS)
SEGMENTS = st.builds(
    Segment,
    id=st.text(max_size=8),
    started=st.integers(0, 2 * 10**9).map(float),
    seconds=SECONDS,
    state=st.sampled_from(["running", "finished", "stopped", "failed"]),
    first_batch=st.integers(0, 10**12),
    last_batch=st.integers(0, 10**12),
    resumed=st.none() | POSITIONS,
    begins_run=st.booleans(),
    process=st.text(max_size=20),
    folder=st.text(max_size=20),
)
VALUES = st.recursive(
    st.none() | st.floats() | st.text(max_size=3),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["segment", "seconds"]), values),
    max_leaves=8,
)
LINE = json.loads(Segment("a", 1.0, {}).line())


@given(SEGMENTS)
def test_what_is_written_is_read(segment) -> None:
    line = segment.line()
    assert "\n" not in line and line.isascii()
    assert Segment.parse(line) == segment
    assert Segment.parse(line + "   ").folder == segment.folder


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"segment": 3}, "'segment' is 3"),
        ({"started": "now"}, "'started' is 'now'"),
        ({"started": float("nan")}, "number of seconds"),
        ({"started": 10**400}, "number of seconds"),
        ({"started": True}, "number of seconds"),
        ({"state": "asleep"}, "'state' is 'asleep'"),
        ({"state": ["running"]}, "'state' is"),
        ({"last_batch": -1}, "'last_batch' is -1"),
        ({"first_batch": 1.5}, "number of batches"),
        ({"seconds": []}, "must be an object"),
        ({"seconds": {"sleeping": 1}}, "unknown categories"),
        ({"seconds": {"lost": 1}}, "unknown categories"),
        ({"seconds": {"training": -1}}, "negative"),
        ({"resumed": {"segment": "b"}}, "must be an object"),
        ({"process": None}, "'process' is None"),
    ],
)
def test_other_contents_raise(change, match) -> None:
    with pytest.raises(ValueError, match=match):
        Segment.parse(json.dumps({**LINE, **change}))


@pytest.mark.parametrize("line", ["", "{", "[]", "null", "[" * 100_000, '{"segment": "\ud800"}', "1" * 5000])
def test_other_lines_raise(line) -> None:
    with pytest.raises(ValueError):
        Segment.parse(line)


# Hypothesis knows the strings in the code, and may put the two keys together.
@given(VALUES.filter(lambda saved: not isinstance(saved, dict) or saved.keys() != {"segment", "seconds"}))
def test_positions_of_anything_else_raise(saved) -> None:
    with pytest.raises(ValueError):
        Position.of_saved(saved)
