"""The categories of a ledger."""

from __future__ import annotations

from composer.ledger import Category
from composer.ledger.category import MEASURED


def test_labels_are_distinct_and_names_are_stable() -> None:
    assert len({category.label for category in Category}) == len(Category)
    # Files that exist have these names.
    assert [category.value for category in Category] == [
        *("training", "repeated", "data", "evaluation", "saving", "compiling", "logging"),
        *("start_up", "lost", "not_running", "other"),
    ]


def test_a_process_measures_all_but_what_follows_from_several() -> None:
    assert set(Category) - set(MEASURED) == {Category.LOST, Category.NOT_RUNNING}
