"""The command that repeats an exploration."""

from __future__ import annotations

from typing import Any

from composer.exploration.command import command_of
from composer.exploration.variant import Variant
from composer.trials import Target

SCRIPT = Target("script", "train.py", ("--lr", "1"))


def test_a_variant_with_several_changes_stays_one() -> None:
    """As options, its changes would be tried as one method each."""
    both = Variant("both", ("algorithms+=EMA()", "max_duration=5ep"), late=True)
    call = command_of(SCRIPT, {"target": "a>=1", "methods": [], "extra": ["algorithms+=A()", both], "budget": 60.0})
    given: dict[str, Any] = {}

    def explore(program: list[str], **arguments: Any) -> None:
        given.update(arguments, program=program)

    exec(call.replace("composer.explore", "explore"), {"explore": explore, "Variant": Variant})
    assert given == {
        "program": ["train.py", "--lr", "1"],
        "target": "a>=1",
        "methods": [],
        "extra": ["algorithms+=A()", both],
        "budget": 60,
    }


def test_secrets_of_variants_are_masked() -> None:
    variant = Variant("logged", ("loggers+=MyLogger('https://me:hunter2@host')",))
    assert "hunter2" not in command_of(SCRIPT, {"target": "a>=1", "extra": [variant]})


def test_every_option_is_repeated() -> None:
    given = {"target": "a>=1", "seed": 100, "folder": "my runs", "time_limit": 60.0, "without": ["batch size"]}
    assert command_of(SCRIPT, given) == (
        "composer explore '--target=a>=1' --seed=100 '--folder=my runs' --time-limit=60 '--without=batch size' "
        "train.py --lr 1"
    )
