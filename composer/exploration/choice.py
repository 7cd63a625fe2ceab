"""Which variants to try: names of methods to try or to leave out, and changes that the user adds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer._string_lists import no_string
from composer._text import one_of
from composer.exploration.method_rows import METHODS
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.recipe import parse_change
from composer.exploration.space import Space, space_of
from composer.exploration.variant import Kind, Variant
from composer.trials.assignments import trainer_arguments

__all__ = ["CHOICES", "TUNING", "Choice", "check_changes", "choice_of", "variant_of"]

# Kinds of variants that are no algorithms, by the name under which they can be chosen.
_SETTINGS: Mapping[str, Kind] = {"precision": "precision", "compile": "compile"}
TUNING: Mapping[str, Kind] = {"learning rate": "learning_rate", "batch size": "batch_size"}
_MODULES = re.compile(r"\b(?:\w+\.)+(?=[A-Za-z_]\w*\()")
_EXCLUDED = [name for name, row in METHODS.items() if row.excluded]
# What ``methods`` can name; ``without`` can name TUNING, that of the baseline, as well.
CHOICES = (*(name for name in METHODS if name not in _EXCLUDED), *_SETTINGS)


@dataclass(frozen=True)
class Choice:
    """What a user wants to be tried.

    Args:
        methods: Names of algorithms, "precision" and "compile"; None for all. The learning rate and the batch size of
            the baseline are tuned in any case.
        without: Names to leave out, also "learning rate" and "batch size".
        extra: Further variants, or changes such as "algorithms+=MyMethod()", each a variant.

    Raises:
        TypeError: An argument is a string, or a change is neither a string nor a variant.
        ValueError: A name or an argument of the trainer does not exist, or a change has another form.

    >>> space = Choice(methods=["EMA"], without=["batch size"]).space(ProgramFacts(learning_rates=(0.1,)))
    >>> [one.name for one in space.variants][:4]
    ["EMA(half_life='1000ba', update_interval='1ba')", 'lr x2', 'lr x0.5', 'lr x4']
    """

    methods: Sequence[str] | None = None
    without: Sequence[str] = ()
    extra: Sequence[str | Variant] = ()

    def __post_init__(self) -> None:
        for argument, given in (("methods", self.methods), ("without", self.without), ("extra", self.extra)):
            no_string(argument, given)
        for name in self.methods or ():
            one_of("methods", name, CHOICES)
        for name in self.without:
            one_of("without", name, (*CHOICES, *TUNING))
        names = [one.name for one in self.added]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"extra must hold different variants, but {twice!r} is there {names.count(twice)} times.")

    @property
    def added(self) -> list[Variant]:
        """The further variants."""
        return [variant_of("extra", one) for one in self.extra]

    def space(self, facts: ProgramFacts) -> Space:
        """Return what can be tried on a program; the user's own variants come first.

        Args:
            facts: The facts of the program.
        """
        space, added = space_of(facts), self.added
        taken = {*(CHOICES if self.methods is None else self.methods), *TUNING} - {*self.without}
        names, changes = {one.name for one in added}, {one.changes for one in added}
        known = [
            one
            for one in space.variants
            if choice_of(one) in taken and one.name not in names and one.changes not in changes
        ]
        return Space((*added, *known), {name: reason for name, reason in space.refused.items() if name in taken})


def choice_of(variant: Variant) -> str:
    """Return the name under which a variant of the space can be chosen, one of :data:`CHOICES` or :data:`TUNING`.

    Args:
        variant: The variant.

    >>> choice_of(Variant("MixUp(0.2)", ("algorithms+=MixUp(0.2)",)))
    'MixUp'
    """
    kinds = {kind: name for name, kind in {**_SETTINGS, **TUNING}.items()}
    return kinds.get(variant.kind) or parse_change(variant.changes[0]).value.partition("(")[0]


def check_changes(argument: str, changes: Sequence[str]) -> None:
    """Raise unless changes are assignments to arguments of the trainer; what they name is not created.

    Args:
        argument: Name of the argument that has the changes, for the message.
        changes: The changes.

    Raises:
        TypeError: They are one string.
        ValueError: One has another form, or the trainer has no such argument.

    >>> check_changes("changes", ["optimizer.lr=0.1"])
    Traceback (most recent call last):
    ValueError: changes must be one of 'model', ..., but got 'optimizer'. Did you mean 'optimizers'?
    """
    no_string(argument, changes)
    for change in changes:
        one_of(argument, parse_change(change).name, trainer_arguments())


def variant_of(argument: str, given: str | Variant) -> Variant:
    """Return the variant of a change, which is named by what it adds, or by the change.

    Args:
        argument: Name of the argument that has the change, for the message.
        given: The change, or a variant, which is returned as it is.

    Raises:
        TypeError: It is neither.
        ValueError: A change has another form, or the trainer has no such argument.

    >>> variant_of("extra", "algorithms+=pkg.methods.MyMethod(0.1)").name
    'MyMethod(0.1)'
    """
    if isinstance(given, Variant):
        check_changes(argument, given.changes)
        return given
    if not isinstance(given, str):
        raise TypeError(f"{argument} must hold changes such as 'algorithms+=MyMethod()', or variants; got {given!r}.")
    check_changes(argument, [given])
    change = parse_change(given)
    # Modules are left out of the name, as in pkg.methods.MyMethod(0.1).
    short = _MODULES.sub("", change.value).removesuffix("()")
    return Variant(short if change.operator == "+=" else given.strip(), (given.strip(),))
