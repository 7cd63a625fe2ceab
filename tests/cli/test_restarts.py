"""A run whose rank is killed is restarted, and gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.nodes import BATCHES, Node, alone, is_alive, told


@pytest.mark.slow
@pytest.mark.parametrize(("what", "resumed_from"), [(["kill"], 4), (["kill", "damage"], 2)])
def test_killed_rank_restarts(what: list[str], resumed_from: int, tmp_path: Path) -> None:
    """Also where the newest checkpoint is damaged."""
    node = Node(tmp_path, ["-n", "2", "--max_restarts", "1"], what)
    try:
        assert node.end() == 0, node.output
    finally:
        node.close()
    assert "composer: restart 1 of 1" in node.output
    assert ("autoresume resumes from" in node.output) == ("damage" in what)
    before = [told(tmp_path, "1", rank)["pid"] for rank in range(2)]
    for rank in range(2):
        start, end = told(tmp_path, "start", rank), told(tmp_path, "end", rank)
        assert start["from"] == resumed_from
        assert start["pid"] not in before
        assert end["samples"] == 2 * BATCHES
        assert end["weights"] == pytest.approx(alone(), abs=1e-6)
    assert not any(map(is_alive, before))
