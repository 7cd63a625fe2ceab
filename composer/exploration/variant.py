"""Variants: named sets of changes to a training program, alone and in combination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["BASELINE", "TUNED_KINDS", "Kind", "Variant", "combined"]

Kind = Literal["baseline", "method", "learning_rate", "batch_size", "precision", "compile", "placebo", "combination"]

# What the baseline is tuned by; all else is a method.
TUNED_KINDS: tuple[Kind, ...] = ("learning_rate", "batch_size")


@dataclass(frozen=True)
class Variant:
    """A way to train the program.

    Args:
        name: Its name, such as "BlurPool" or "BlurPool+lr x2".
        changes: Assignments such as ``"algorithms+=BlurPool()"``, see :class:`.Assignment`.
        kind: What it changes.
        parts: The variants that it combines; empty for a single one.
        group: Variants of one group exclude each other, such as values of one argument; empty for none. The first of a
            group stands for the others until it is seen whether it is worth to try them.
        late: Whether it changes little before the last part of training, such as an average of weights or a cool-down,
            so that the beginning of a run says nothing about it.
        factor: For a learning rate, how many times that of the program it is.
        speed_only: Whether it changes how long a step takes and, up to rounding, nothing else, such as a memory layout:
            a step that is measured to be 1.4 times as fast is then expected to gain just that.

    >>> Variant("BlurPool", ("algorithms+=BlurPool()",), "method").parts
    ()
    """

    name: str
    changes: tuple[str, ...] = ()
    kind: Kind = "method"
    parts: tuple[Variant, ...] = ()
    group: str = ""
    late: bool = False
    factor: float = 1.0
    speed_only: bool = False

    @property
    def single(self) -> tuple[Variant, ...]:
        """The variants that it consists of: its parts, or itself; none for the baseline."""
        return () if self.kind == "baseline" else self.parts or (self,)


BASELINE = Variant("baseline", kind="baseline")


def combined(variants: Iterable[Variant]) -> Variant:
    """Return the combination of variants; of none, the baseline.

    Args:
        variants: The variants, single or combined. Of one group there may be one only.

    Raises:
        ValueError: Two variants exclude each other.

    >>> blur = Variant("BlurPool", ("algorithms+=BlurPool()",))
    >>> combined([blur, Variant("EMA", ("algorithms+=EMA()",))]).name
    'BlurPool+EMA'
    >>> combined([]) is BASELINE
    True
    """
    parts = tuple(dict.fromkeys(single for variant in variants for single in variant.single))
    groups = [part.group for part in parts if part.group]
    if len(groups) != len(set(groups)):
        raise ValueError(f"Variants exclude each other: {', '.join(part.name for part in parts)}.")
    if len(parts) < 2:
        return parts[0] if parts else BASELINE
    changes = tuple(change for part in parts for change in part.changes)
    return Variant("+".join(part.name for part in parts), changes, "combination", parts)
