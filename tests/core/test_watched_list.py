from __future__ import annotations

import copy
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.watched_list import WatchedList


def setitem(index, value):
    return lambda items: operator.setitem(items, index, value)


CHANGES = {
    "append": lambda items: items.append(4),
    "extend": lambda items: items.extend(x for x in (4, 5)),
    "extend by itself": lambda items: items.extend(items),
    "insert": lambda items: items.insert(1, 4),
    "remove": lambda items: items.remove(1),
    "pop": lambda items: items.pop(),
    "pop at": lambda items: items.pop(0),
    "clear": lambda items: items.clear(),
    "sort": lambda items: items.sort(),
    "sort with": lambda items: items.sort(key=lambda x: -x, reverse=True),
    "reverse": lambda items: items.reverse(),
    "item": setitem(0, 9),
    "slice": setitem(slice(0, 2), [7, 8, 9]),
    "all": setitem(slice(None), (7,)),
    "stride": setitem(slice(None, None, 2), [7, 8]),
    "delete": lambda items: operator.delitem(items, 1),
    "delete slice": lambda items: operator.delitem(items, slice(0, 2)),
    "+=": lambda items: operator.iadd(items, [4]),
    "*=": lambda items: operator.imul(items, 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
class TestEachChange:
    def test_behaves_like_a_list_and_notifies_once(self, change):
        told = []
        plain, watched = [3, 1, 2], WatchedList([3, 1, 2], lambda: told.append(list(watched)))
        expected, got = change(plain), change(watched)
        assert watched == plain
        assert got == expected
        assert told == [plain]
        if isinstance(got, list):
            assert got is watched

    def test_rejected_change_is_undone(self, change):
        def refuse():
            raise ValueError("no")

        watched = WatchedList([3, 1, 2], refuse)
        with pytest.raises(ValueError, match="no"):
            change(watched)
        assert watched == [3, 1, 2]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda items: items.remove(9), ValueError),
        (lambda items: items.pop(9), IndexError),
        (setitem(9, 0), IndexError),
        (lambda items: operator.delitem(items, 9), IndexError),
        (lambda items: items.extend(5), TypeError),
        (lambda items: items.sort(key=5), TypeError),
    ],
)
def test_failing_changes_do_not_notify(change, error):
    told = []
    watched = WatchedList([3, 1, 2], lambda: told.append(1))
    with pytest.raises(error):
        change(watched)
    assert (watched, told) == ([3, 1, 2], [])


def test_reading_does_not_notify():
    watched = WatchedList([3, 1, 2], lambda: pytest.fail("told"))
    assert (watched[0], watched[1:], len(watched), watched.index(2), watched.count(1), 3 in watched) == (
        3,
        [1, 2],
        3,
        2,
        1,
        True,
    )
    assert list(watched) == [3, 1, 2]
    assert isinstance(watched, list)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), list])
def test_copies_are_plain_lists(copied):
    watched = WatchedList([3, [1]], lambda: None)
    assert type(copied(watched)) is list
    assert copied(watched) == [3, [1]]


@given(st.lists(st.integers()), st.lists(st.sampled_from(sorted(CHANGES)), max_size=6))
def test_random_series_of_changes(start, names):
    plain, watched = list(start), WatchedList(start, lambda: None)
    for name in names:
        outcomes = []
        for items in (plain, watched):
            try:
                CHANGES[name](items)
                outcomes.append(None)
            except (IndexError, ValueError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        assert watched == plain
