"""A recipe that the user has: names of methods, changes and variants, read into one variant of the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from composer._text import did_you_mean
from composer.exploration.choice import CHOICES, choice_of, variant_of
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.recipe import parse_change
from composer.exploration.space import Space, space_of
from composer.exploration.variant import TUNED_KINDS, Variant, combined

__all__ = ["GivenRecipe"]

# What adds an object, by its call: "EMA(half_life='10ba')" or "package.module.MyMethod()".
_CALL = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*\(.*\)", re.DOTALL)
# How an exploration names the learning rates and batch sizes that it tries.
_TUNED = re.compile(r"(?:lr|batch size) x\d+(?:\.\d+)?")
_OPENED_BY = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class GivenRecipe:
    """The parts of a recipe as a user writes them.

    A part is a method by its name ("EMA", with the arguments that an exploration would try first), "precision" or
    "compile", a call ("EMA(half_life='10ba')", "MyMethod()"), a variant by the name that a report gives it ("lr x2"),
    or a change ("optimizers.lr=0.1"). Names and calls may be joined: "BlurPool+EMA", as in the first line of a report.

    Args:
        parts: The parts, at least one.

    Raises:
        TypeError: A part is neither a string nor a variant.
        ValueError: There is no part, or one has another form or a name that does not exist.

    >>> recipe = GivenRecipe.of("LabelSmoothing(0.2)+lr x2")
    >>> recipe.variant(ProgramFacts(learning_rates=(0.1,))).changes
    ('algorithms+=LabelSmoothing(0.2)', 'optimizers.lr=0.2')
    """

    parts: tuple[str | Variant, ...]

    @classmethod
    def of(cls, given: str | Variant | Sequence[str | Variant]) -> GivenRecipe:
        """Return the recipe of one or several parts, in which joined names are taken apart.

        Args:
            given: The parts.

        Raises:
            TypeError: A part is neither a string nor a variant.
            ValueError: There is no part, or one has another form or a name that does not exist.

        >>> GivenRecipe.of(["BlurPool+EMA", "optimizers.lr=0.1"]).parts
        ('BlurPool', 'EMA', 'optimizers.lr=0.1')
        """
        listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        parts: list[str | Variant] = []
        for one in listed:
            parts += [one] if not isinstance(one, str) or _is_change(one) else _taken_apart(one)
        return cls(tuple(parts))

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("confirm must name at least one method or change, such as 'BlurPool+EMA'; got nothing.")
        for one in self.parts:
            if not isinstance(one, str) or _is_change(one):
                variant_of("confirm", one)
            elif one not in CHOICES and not _CALL.fullmatch(one) and not _TUNED.fullmatch(one):
                raise ValueError(
                    f"confirm has {one!r}, which is no method.{did_you_mean(one, CHOICES)} composer explore --list has "
                    f"the names; write a class of the program with parentheses, such as MyMethod(), and any other "
                    f"change as NAME=VALUE."
                )

    @property
    def written(self) -> list[str]:
        """The parts as text, for the command that repeats the exploration."""
        return [text for one in self.parts for text in ([one] if isinstance(one, str) else one.changes)]

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes that the user has written, which are to be checked with the program's classes."""
        return tuple(change for one in self._written() for change in one.changes)

    def variant(self, facts: ProgramFacts) -> Variant:
        """Return the recipe for a program, a single variant or a combination.

        Args:
            facts: The facts of the program.

        Raises:
            ValueError: A part does not apply to the program, or two exclude each other.
        """
        space = space_of(facts)
        try:
            return combined(_part(one, space, facts) for one in self.parts)
        except ValueError as error:
            raise ValueError(f"confirm: {error}") from None

    def _written(self) -> Iterator[Variant]:
        for one in self.parts:
            if not isinstance(one, str) or _is_change(one):
                yield variant_of("confirm", one)
            elif _CALL.fullmatch(one):
                yield _added(one)


def _part(given: str | Variant, space: Space, facts: ProgramFacts) -> Variant:
    """The variant of a part."""
    if isinstance(given, Variant):
        return given
    if _is_change(given):
        return _grouped(variant_of("confirm", given), space, facts)
    named = next((one for one in space.variants if given in (one.name, choice_of(one))), None)
    if named is not None:
        return named
    if _CALL.fullmatch(given):
        return _added(given)
    reason = space.refused.get(given if given in CHOICES else "learning rate" if given[0] == "l" else "batch size")
    if reason is None:
        known = ", ".join(one.name for one in space.variants if one.kind in TUNED_KINDS)
        reason = f"an exploration tries {known}; write another value as a change, such as optimizers.lr=0.1"
    raise ValueError(f"{given!r} cannot be used: {reason}.")


def _grouped(variant: Variant, space: Space, facts: ProgramFacts) -> Variant:
    """A change of what the baseline is tuned by, in the group of these values, so that it replaces them."""
    change = parse_change(variant.changes[0])
    path = f"{change.name}{change.rest}"
    if path == "optimizers.lr" and facts.fixed_schedule:
        reason = space.refused["learning rate"]
        raise ValueError(f"{variant.name!r} would have no effect: {reason}.")
    for one in space.variants:
        if one.kind in TUNED_KINDS and one.changes[0].partition("=")[0] == path and change.operator == "=":
            return replace(variant, kind=one.kind, group=one.group)
    return variant


def _added(call: str) -> Variant:
    return variant_of("confirm", f"algorithms+={call}")


def _is_change(text: str) -> bool:
    """Whether a text is an assignment."""
    try:
        parse_change(text)
    except ValueError:
        return False
    return True


def _taken_apart(text: str) -> list[str]:
    """The names and calls that a text joins by "+", as far as they are not inside brackets or quotes."""
    parts, open_brackets, quote = [""], list[str](), ""
    for one in text:
        if quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one in "([{":
            open_brackets.append(one)
        elif one in _OPENED_BY and open_brackets[-1:] == [_OPENED_BY[one]]:
            open_brackets.pop()
        elif one == "+" and not open_brackets:
            parts.append("")
            continue
        parts[-1] += one
    return [one.strip() for one in parts]
