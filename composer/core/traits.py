"""What an algorithm, callback or logger declares about itself: its place in the order, conflicts, sharding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from composer.core.distributed_support import Sharding

if TYPE_CHECKING:
    from composer.core.algorithm_order import Claim, Slot

__all__ = ["Traits", "traits_of"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Declarations of an algorithm, callback or logger, kept in its attribute ``__traits__``.

    They stand under one name with underscores, so that no attribute of a user's class is taken for one of them. A class
    changes some of what it inherits, and an object some of what its class declares, by :func:`dataclasses.replace`.

    Attributes:
        slot: Where among other algorithms this one runs; None leaves it to the user's order.
        claims: What no other algorithm of the run may do too.
        may_claim: What ``claims`` holds for some arguments.
        conflicts_with: Names of conflicting algorithms, and for each why, and what to do instead. The engine warns
            of such a pair.
        changes_shapes: Whether the shapes of the batches change during training, so that a compiled model may
            have to be compiled again.
        sharding: How it works with sharded data and weights.
        sharding_reason: Why.
        engine_conflict: Why it does not work where an engine such as DeepSpeed's keeps gradients, weights and step to
            itself; empty where it does.

    >>> from composer import Algorithm
    >>> from composer.core import Slot
    >>> class Softer(Algorithm):
    ...     __traits__ = Traits(slot=Slot.LABEL)
    >>> traits_of(Softer()).slot.name
    'LABEL'
    """

    slot: Slot | None = None
    claims: frozenset[Claim] = frozenset()
    may_claim: frozenset[Claim] = frozenset()
    conflicts_with: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    changes_shapes: bool = False
    sharding: Sharding = Sharding.SAFE
    sharding_reason: str = ""
    engine_conflict: str = ""


_NONE = Traits()


def traits_of(listener: Any) -> Traits:
    """Return what an object or a class declares; the defaults where it declares nothing, such as a mock.

    Args:
        listener: An algorithm, a callback or a logger, or the class of one.

    >>> traits_of(object()).slot is None
    True
    """
    found = getattr(listener, "__traits__", None)
    return found if isinstance(found, Traits) else _NONE
