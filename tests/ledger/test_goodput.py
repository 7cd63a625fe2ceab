"""Goodput: the time of all ranks over all processes of a run, the worst rank, and missing ranks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.ledger import Category, Ledger, Position, Segment
from composer.ledger.category import MEASURED

T, D, S, U = Category.TRAINING, Category.DATA, Category.SAVING, Category.START_UP


def run(*ranks: dict[Category, float], name: str = "a", started: float = 0.0, **more) -> Segment:
    return Segment(
        name, started, ranks[0], more.pop("state", "finished"), ranks=ranks if len(ranks) > 1 else (), **more
    )


def test_one_rank_has_the_goodput_of_the_ledger() -> None:
    ledger = Ledger([run({T: 6.0, U: 2.0, S: 2.0})])
    goodput = ledger.of_all_ranks()
    assert (goodput.share, goodput.by_rank, goodput.worst_rank, goodput.missing) == (0.6, (0.6,), 0, 0.0)
    assert goodput.share == ledger.goodput
    assert goodput.seconds == ledger.seconds
    assert str(goodput) == "60.0 % goodput"


def test_the_worst_rank_and_its_reason() -> None:
    goodput = Ledger([run({T: 8.0, D: 2.0}, {T: 3.0, D: 7.0}, {T: 7.0, D: 3.0})]).of_all_ranks()
    assert goodput.by_rank == (0.8, 0.3, 0.7)
    assert goodput.share == pytest.approx(0.6)
    assert (goodput.worst_rank, goodput.reason) == (1, D)
    assert goodput.seconds[D] == 12.0
    assert str(goodput) == "60.0 % goodput of 3 ranks, 30.0 % of rank 1 (waiting for data)"


def test_equal_ranks_have_no_reason() -> None:
    goodput = Ledger([run({T: 8.0, D: 2.0}, {T: 8.0, D: 2.0})]).of_all_ranks()
    assert goodput.reason is None
    assert str(goodput) == "80.0 % goodput of 2 ranks, 80.0 % of rank 0"


def test_work_after_the_checkpoint_is_lost_on_all_ranks() -> None:
    at_save = ({U: 1.0, T: 5.0, D: 1.0}, {U: 1.0, T: 3.0, D: 3.0})
    crashed = Segment("a", 0.0, {U: 1.0, T: 8.0, D: 2.0}, "running", last_batch=80, ranks=at_save)
    resumed = run(
        {U: 1.0, T: 4.0},
        {U: 2.0, T: 3.0},
        name="b",
        started=13.0,
        first_batch=50,
        last_batch=90,
        resumed=Position("a", at_save[0], at_save),
    )
    ledger = Ledger([crashed, resumed])
    assert ledger.total == 18.0
    one, other = ledger.of_rank(0), ledger.of_rank(1)
    assert dict(one.seconds) == dict(ledger.seconds)
    assert (other.seconds[T], other.seconds[D], other.seconds[U]) == (6.0, 3.0, 3.0)
    # Since the checkpoint, rank 1 is taken to have done what rank 0 did: three seconds of steps and one of waiting.
    assert one.seconds[Category.LOST] == other.seconds[Category.LOST] == 4.0
    assert other.seconds[Category.NOT_RUNNING] == 2.0
    goodput = ledger.of_all_ranks()
    assert goodput.by_rank == pytest.approx((9 / 18, 6 / 18))
    assert goodput.seconds[Category.LOST] == 8.0


def test_ranks_that_a_restart_lost_are_missing() -> None:
    first = run({T: 10.0}, {T: 10.0}, {T: 10.0}, last_batch=10)
    second = run({T: 10.0}, {T: 9.0, D: 1.0}, name="b", started=12.0, first_batch=10, last_batch=20)
    goodput = Ledger([first, second]).of_all_ranks()
    assert goodput.wall == 22.0
    assert goodput.by_rank == pytest.approx((20 / 22, 19 / 22, 10 / 22))
    assert goodput.missing == pytest.approx(10.0)
    paid = sum(goodput.seconds.values()) + goodput.missing
    assert paid == pytest.approx(3 * goodput.wall)
    assert goodput.worst_rank == 2


def test_no_time() -> None:
    goodput = Ledger([]).of_all_ranks()
    assert (goodput.share, goodput.by_rank, str(goodput)) == (0.0, (0.0,), "0.0 % goodput")


seconds = st.dictionaries(st.sampled_from(MEASURED), st.floats(0, 100, allow_subnormal=False), min_size=1)


@given(st.lists(st.lists(seconds, min_size=1, max_size=3), min_size=1, max_size=4))
def test_all_time_of_all_ranks_is_accounted_for(processes) -> None:
    """Ranks of a process end together, so that what each has beyond or short of rank 0 is between its own clocks."""
    segments, now = [], 0.0
    for number, ranks in enumerate(processes):
        length = max(sum(rank.values()) for rank in ranks)
        ranks = [{**rank, Category.OTHER: rank.get(Category.OTHER, 0) + length - sum(rank.values())} for rank in ranks]
        segments.append(run(*ranks, name=str(number), started=now, first_batch=number, last_batch=number + 1))
        now += length + 1
    ledger = Ledger(segments)
    goodput = ledger.of_all_ranks()
    assert len(goodput.by_rank) == max(len(ranks) for ranks in processes)
    paid = sum(goodput.seconds.values()) + goodput.missing
    assert paid == pytest.approx(goodput.wall * len(goodput.by_rank), rel=1e-6, abs=1e-6)
    assert 0 <= min(goodput.by_rank) <= goodput.share <= max(goodput.by_rank) <= 1
    assert goodput.by_rank[0] == pytest.approx(ledger.goodput, abs=1e-9)


@given(st.lists(seconds, min_size=2, max_size=5))
def test_ranks_survive_a_line_and_a_checkpoint(ranks) -> None:
    full = tuple({each: round(rank.get(each, 0.0), 3) for each in MEASURED} for rank in ranks)
    segment = Segment("a", 0.0, full[0], "finished", resumed=Position("a", full[0], full), ranks=full)
    assert Segment.parse(segment.line()) == segment
    assert Position.of_saved(json.loads(json.dumps(segment.resumed.to_saved()))) == segment.resumed


@pytest.mark.parametrize(
    "table", [[], {}, {"training": 1.0}, {"training": [1.0], "data": [1.0, 2.0]}, {"training": [-1.0]}, {"naps": [1.0]}]
)
def test_a_damaged_table_is_an_error(table) -> None:
    content = json.loads(run({T: 1.0}).line()) | {"ranks": table}
    with pytest.raises(ValueError, match=r"ranks|seconds"):
        Segment.parse(json.dumps(content))


def test_ranks_that_a_restart_added_were_missing_before() -> None:
    first = run({T: 10.0}, last_batch=10)
    second = run({T: 5.0}, {T: 4.0, D: 1.0}, name="b", started=12.0, first_batch=10, last_batch=20)
    goodput = Ledger([first, second]).of_all_ranks()
    assert goodput.missing == pytest.approx(10.0)
    assert goodput.seconds[Category.NOT_RUNNING] == pytest.approx(4.0)


def test_the_time_between_processes_is_no_reason() -> None:
    """The second rank started later, so that its own times sum to less than those of rank 0."""
    first = run({T: 8.0, D: 2.0}, {T: 4.0, D: 5.0}, last_batch=10)
    second = run({T: 8.0, D: 2.0}, {T: 4.0, D: 5.0}, name="b", started=40.0, first_batch=10, last_batch=20)
    assert Ledger([first, second]).of_all_ranks().reason is D
