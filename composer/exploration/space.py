"""The space of variants of a program: methods, learning rates, batch sizes, precision and compilation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from composer import algorithms
from composer.core.traits import traits_of
from composer.exploration.method_rows import METHODS, MethodRow
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.variant import Kind, Variant

__all__ = ["Space", "methods", "space_of"]

# The most likely ones come first, for searches that have time for a few only.
_SIZES = (0.5, 2.0)
# Powers of two and what is in between, which is as fine as short runs can tell.
_RATES = (2.0, 0.5, 4.0, 0.25, 8.0, 1.4, 0.7, 2.8, 0.35, 5.6)
_PRECISIONS = ("amp_bf16", "amp_fp16", "amp_fp8", "bf16", "fp16")


@dataclass(frozen=True)
class Space:
    """What can be tried on a program.

    Args:
        variants: The variants; the first of a group is the usual one.
        refused: What cannot be tried, with the reason.

    >>> Space((Variant("EMA"),), {"BlurPool": "the model has no 2-D convolution"}).variants[0].name
    'EMA'
    """

    variants: tuple[Variant, ...]
    refused: dict[str, str]


def space_of(facts: ProgramFacts) -> Space:
    """Return the variants that may apply to a program; the rest is found out when they are screened.

    Args:
        facts: The facts of the program.

    >>> space = space_of(ProgramFacts(learning_rates=(0.1,)))
    >>> [one.changes for one in space.variants if one.kind == "learning_rate"][:3]
    [('optimizers.lr=0.2',), ('optimizers.lr=0.05',), ('optimizers.lr=0.4',)]
    >>> space.refused["BlurPool"]
    'the model has no 2-D convolution'
    """
    variants: list[Variant] = []
    refused: dict[str, str] = {}
    for name, row in METHODS.items():
        reason = row.excluded or _missing(name, row, facts)
        if reason:
            refused[name] = reason
        else:
            variants += methods(name, row, facts)
    for kind, found in (
        ("learning rate", _learning_rates(facts)),
        ("batch size", _batch_sizes(facts)),
        ("precision", _precision(facts)),
        ("compile", _compiled(facts)),
    ):
        if isinstance(found, str):
            refused[kind] = found
        else:
            variants += found
    return Space(tuple(variants), refused)


def methods(name: str, row: MethodRow, facts: ProgramFacts) -> Iterator[Variant]:
    """Yield the variants of an algorithm.

    Args:
        name: Its class.
        row: Its row.
        facts: The facts of the program.

    >>> [one.name for one in methods("MixUp", METHODS["MixUp"], ProgramFacts())]
    ['MixUp(0.2)', 'MixUp(0.05)', 'MixUp(1.0)']
    """
    for call in row.calls:
        made = call.format(
            sequence_length=max(facts.sequence_length, 8),
            block=facts.block or "Block",
            low=round(min(facts.low, 0.0), 3),
            high=round(max(facts.high, facts.low + 1e-3, 1.0), 3),
            # The average covers a fiftieth of the run, as is usual for long ones.
            half_life=max(1, facts.steps // 50) if facts.steps else 1000,
            window=max(1, facts.steps // 100) if facts.steps else 100,
        )
        group = name if len(row.calls) > 1 else ""
        label, changes = made.removesuffix("()"), (f"algorithms+={made}",)
        yield Variant(label, changes, group=group, late=row.late, speed_only=row.speed_only)


def _missing(name: str, row: MethodRow, facts: ProgramFacts) -> str:
    """Return why an algorithm cannot be added to a program."""
    if name in facts.algorithms:
        return "the program uses it already"
    traits = traits_of(getattr(algorithms, name))
    for used in facts.algorithms:
        theirs = traits_of(getattr(algorithms, used, None))
        reason = traits.conflicts_with.get(used) or theirs.conflicts_with.get(name)
        if reason:
            return f"it composes badly with {used}, which the program uses: {reason}"
        if traits.claims & theirs.claims:
            return f"it does what {used} does, which the program uses"
    return row.missing(facts)


def _learning_rates(facts: ProgramFacts) -> list[Variant] | str:
    rates = set(facts.learning_rates)
    if len(rates) != 1:
        return "the parameter groups have different learning rates" if rates else "there is no learning rate"
    if facts.fixed_schedule:
        return (
            f"the program's {facts.fixed_schedule} was created with the optimizer's learning rate and keeps it; use a "
            f"schedule of composer.optim"
        )
    rate = rates.pop()
    return [_setting("lr", factor, "optimizers.lr", f"{rate * factor:.6g}", "learning_rate") for factor in _RATES]


def _batch_sizes(facts: ProgramFacts) -> list[Variant] | str:
    if not facts.batch_size:
        return "the batch size of the program's loader cannot be changed from outside"
    sizes = {factor: int(facts.batch_size * factor) for factor in _SIZES}
    return [
        _setting("batch size", factor, "train_dataloader.batch_size", str(size), "batch_size")
        for factor, size in sizes.items()
        if size > 1
    ]


def _precision(facts: ProgramFacts) -> list[Variant] | str:
    if facts.precision in _PRECISIONS:
        return f"the program uses {facts.precision}"
    if not facts.has_bf16:
        return f"the device ({facts.device}) has no fast bfloat16"
    return [Variant("amp_bf16", ("precision=amp_bf16",), "precision", group="precision", speed_only=True)]


def _compiled(facts: ProgramFacts) -> list[Variant] | str:
    if facts.is_compiled:
        return "the program compiles its model"
    return [Variant("compile", ("compile_config={}",), "compile", group="compile")]


def _setting(name: str, factor: float, path: str, value: str, kind: Kind) -> Variant:
    return Variant(f"{name} x{factor:g}", (f"{path}={value}",), kind, group=name, factor=factor)
