from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.exploration.given_recipe import GivenRecipe
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.space import space_of
from composer.exploration.variant import Variant, combined

FACTS = ProgramFacts(learning_rates=(0.1,), batch_size=32, steps=500, has_convolutions=True, labels="classes")


def changes(*parts: Any, facts: ProgramFacts = FACTS) -> tuple[str, ...]:
    return GivenRecipe.of(list(parts)).variant(facts).changes


def test_a_name_is_the_method_as_an_exploration_tries_it_first() -> None:
    assert changes("BlurPool+EMA") == (
        "algorithms+=BlurPool()",
        "algorithms+=EMA(half_life='10ba', update_interval='1ba')",
    )
    assert changes("compile") == ("compile_config={}",)


def test_calls_changes_and_names_of_a_report_are_parts() -> None:
    parts = ("EMA(half_life='5ba', update_interval=\"1ba\")", "lr x2", "pkg.mine.Faster(1.0)", "max_duration=5ep")
    found = GivenRecipe.of(parts).variant(FACTS)
    assert found.changes == (
        "algorithms+=EMA(half_life='5ba', update_interval=\"1ba\")",
        "optimizers.lr=0.2",
        "algorithms+=pkg.mine.Faster(1.0)",
        "max_duration=5ep",
    )
    assert [one.name for one in found.single][2] == "Faster(1.0)"
    assert GivenRecipe.of("+".join(parts[:3])).parts == parts[:3]


@given(st.sets(st.integers(0, 200), min_size=1, max_size=5))
def test_the_name_of_any_recipe_that_a_report_may_have_is_read_as_that_recipe(places: set[int]) -> None:
    variants = space_of(FACTS).variants
    chosen = {one.group or one.name: one for one in (variants[place % len(variants)] for place in sorted(places))}
    recipe = combined(chosen.values())
    assert GivenRecipe.of(recipe.name).variant(FACTS) == recipe


def test_a_plus_inside_a_call_or_a_change_joins_nothing() -> None:
    assert GivenRecipe.of("A('x+y', [1, (2+3)])+EMA").parts == ("A('x+y', [1, (2+3)])", "EMA")
    assert GivenRecipe.of("run_name=a+b").parts == ("run_name=a+b",)
    assert GivenRecipe.of("algorithms+=A()").parts == ("algorithms+=A()",)


@pytest.mark.parametrize("text", ["optimizers.lr=0.04", "optimizers.lr = 0.04"])
def test_a_learning_rate_takes_the_place_of_the_tuned_one(text: str) -> None:
    (part,) = GivenRecipe.of(text).variant(FACTS).single
    assert (part.kind, part.group) == ("learning_rate", "lr")
    with pytest.raises(ValueError, match="confirm: Variants exclude each other: lr x2, optimizers"):
        changes("lr x2", text)


def test_a_variant_stays_as_it_is() -> None:
    given = Variant("both", ("algorithms+=A()", "algorithms+=B()"))
    recipe = GivenRecipe.of(given)
    assert recipe.variant(FACTS) is given
    assert recipe.written == ["algorithms+=A()", "algorithms+=B()"]


def test_what_the_user_wrote_is_to_be_checked_and_what_is_ours_is_not() -> None:
    recipe = GivenRecipe.of(["EMA+Mine(1)", "max_duration=1ep", "lr x2"])
    assert recipe.changes == ("algorithms+=Mine(1)", "max_duration=1ep")
    assert recipe.written == ["EMA", "Mine(1)", "max_duration=1ep", "lr x2"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "confirm must name at least one method or change"),
        ("", "confirm has '', which is no method"),
        ("EMA+", "confirm has '', which is no method"),
        ("EMAA", "'EMAA', which is no method. Did you mean 'EMA'"),
        ("Faster", r"parentheses, such as MyMethod\(\)"),
        ("NoOpModel", "'NoOpModel', which is no method"),
        ("algorithm+=EMA()", "confirm must be one of .* Did you mean 'algorithms'"),
        ("EMA(", r"'EMA\(', which is no method"),
        ("\x1b[2J", r"confirm has '\\x1b\[2J'"),
    ],
)
def test_mistakes_are_seen_at_once(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GivenRecipe.of(parts)


@pytest.mark.parametrize("parts", [3, [3], None])
def test_other_types_are_errors(parts: Any) -> None:
    with pytest.raises(TypeError, match="confirm must hold changes"):
        GivenRecipe.of(parts)


@pytest.mark.parametrize(
    ("part", "facts", "message"),
    [
        ("BlurPool", {"has_convolutions": False}, "'BlurPool' cannot be used: the model has no 2-D convolution"),
        ("EMA", {"algorithms": ("EMA",)}, "the program uses it already"),
        ("precision", {}, "no fast bfloat16"),
        ("lr x3", {}, "'lr x3' cannot be used: an exploration tries lr x2, .*optimizers.lr=0.1"),
        ("batch size x2", {"batch_size": 0}, "cannot be changed from outside"),
        ("lr x2", {"fixed_schedule": "LambdaLR"}, "created with the optimizer's learning rate"),
        ("optimizers.lr=0.4", {"fixed_schedule": "LambdaLR"}, "would have no effect: the program's LambdaLR"),
    ],
)
def test_what_does_not_apply_to_the_program_is_an_error(part: str, facts: dict[str, Any], message: str) -> None:
    given = {"learning_rates": (0.1,), "batch_size": 32, "steps": 500, "has_convolutions": True, **facts}
    with pytest.raises(ValueError, match=message):
        changes(part, facts=ProgramFacts(**given))
