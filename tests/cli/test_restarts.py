"""A run whose rank is killed is restarted, and gives the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.nodes import BATCHES, Node, alone, is_alive, told


@pytest.mark.slow
def test_killed_rank_restarts(tmp_path: Path) -> None:
    """From the newest checkpoint, and the second time, when that one is damaged, from the one before."""
    node = Node(tmp_path, ["-n", "2", "--max_restarts", "2"], ["kill"])
    try:
        assert node.end() == 0, node.output
    finally:
        node.close()
    first, _, then = node.output.partition("composer: restart 1 of 2")
    second, _, third = then.partition("composer: restart 2 of 2")
    assert third, node.output
    assert ["was killed by SIGKILL" in output for output in (first, second, third)] == [True, True, False]
    assert ["autoresume resumes from" in output for output in (first, second, third)] == [False, False, True]
    pids: list[int] = []
    for rank in range(2):
        starts = [told(tmp_path, f"start{attempt}", rank) for attempt in range(3)]
        assert [start["from"] for start in starts] == [0, 4, 6]
        pids += [start["pid"] for start in starts]
        end = told(tmp_path, "end", rank)
        assert end["samples"] == 2 * BATCHES
        assert end["weights"] == pytest.approx(alone(), abs=1e-6)
    assert len(set(pids)) == 6
    assert not any(map(is_alive, pids))
