"""Arguments of explorations and of what is beside them that have the wrong type."""

from __future__ import annotations

import math
from typing import Any

import pytest

import composer
from composer.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "EMA"}, r"methods must be a list of strings, but got 'EMA'; write \['EMA'\]\."),
        ({"without": "compile"}, "without must be a list of strings"),
        ({"extra": "algorithms+=EMA()"}, "extra must be a list of strings"),
        ({"changes": "max_duration=1ep"}, r"changes must be .* write \['max_duration=1ep'\]\."),
        ({"budget": True}, "budget must be a duration such as 90s, or a number of seconds; got True"),
        ({"budget": [3]}, r"budget must be a duration .*; got \[3\]"),
        ({"search_cost": 15.5}, "search_cost must be an integer, but got 15.5"),
        ({"program": 3}, "program must be a function or a list of words such as .*; got 3"),
        ({"program": [3]}, r"program must be a function .*; got \[3\]"),
    ],
)
def test_explore_refuses_wrong_types(arguments: dict[str, Any], message: str) -> None:
    given = {"program": ["no_such.py"], "target": "Accuracy>=0.9", **arguments}
    with pytest.raises(TypeError, match=message):
        composer.explore(given.pop("program"), **given)


@pytest.mark.parametrize("budget", [math.inf, math.nan, 0, -1.0])
def test_a_budget_is_finite_and_positive(budget: float) -> None:
    with pytest.raises(ValueError, match="budget must be a positive duration"):
        composer.explore(["no_such.py"], target="Accuracy>=0.9", budget=budget)


def test_a_search_has_a_least_cost() -> None:
    with pytest.raises(ValueError, match="search_cost must be at least 6, but got 5"):
        composer.explore(["no_such.py"], target="Accuracy>=0.9", search_cost=5)
    with pytest.raises(ValueError, match="confirm gives the recipe itself, so that search_cost=30 is one too many"):
        composer.explore(["no_such.py"], target="Accuracy>=0.9", confirm="EMA", search_cost=30)


def test_other_lists_are_no_strings_either() -> None:
    with pytest.raises(TypeError, match="remedies must be a list of strings"):
        composer.doctor(["no_such.py"], remedies="workers")
    with pytest.raises(TypeError, match="changes must be a list of strings"):
        composer.doctor(["no_such.py"], changes="max_duration=1ep")
    with pytest.raises(TypeError, match="changes must be a list of strings"):
        composer.estimate(["no_such.py"], changes="max_duration=1ep")
    with pytest.raises(TypeError, match="checks must be a list of strings"):
        composer.verify(["no_such.py"], checks="ranks")


def test_a_run_to_compare_is_a_folder_or_a_history() -> None:
    run: Any = 3
    with pytest.raises(TypeError, match="A run must be its folder, its log or a History, but got 3"):
        composer.compare_runs(run, 4)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "unknown=3"], "--set must be one of 'model', "),
        (["--set", "optimizer.lr=3"], "Did you mean 'optimizers'?"),
        (["--try", "optimizer.lr=3"], "--try must be one of 'model', "),
    ],
)
def test_options_are_named_as_they_are_written(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", "--target", "a>=1", *words, __file__])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "'unknown'," not in error
    assert error.count("\n") == 1
