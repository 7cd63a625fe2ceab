"""Traits that an algorithm, callback or logger declares: order, conflicts, support for sharded weights."""

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
    """Declarations of an algorithm, callback or logger, in its attribute ``__traits__``.

    A single dunder attribute holds all of them, so that attributes of custom classes cannot collide with them. Use
    :func:`dataclasses.replace` to change some traits in a subclass, or on an object.

    Attributes:
        slot: Position among other algorithms; None keeps the user's order.
        claims: Things that no other algorithm of the run may also do.
        may_claim: Things that it claims for some arguments.
        conflicts_with: Names of conflicting algorithms, each with the reason and a remedy. The engine warns about such
            pairs.
        changes_shapes: Whether batch shapes change during training, so that a compiled model may be recompiled.
        dynamic_dims: Dimensions of the tensors of a batch whose sizes it changes, such as 1 for the length of
            sequences. A compiled model is compiled for any of their sizes at once, or, with convolutions, for each.
        sharding: Support for sharded data and weights.
        sharding_reason: The reason.
        engine_conflict: Why it does not work with an engine such as DeepSpeed's, which manages gradients, weights and
            the step itself; empty if it does.
        neutral: Values of attributes with which the method must not change the training, to be set before the trainer
            is created; empty if no setting of it does, as of an average that training does not use; None if there are
            none.
        why_not_neutral: Why there are none.

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
    dynamic_dims: tuple[int, ...] = ()
    sharding: Sharding = Sharding.SAFE
    sharding_reason: str = ""
    engine_conflict: str = ""
    neutral: Mapping[str, Any] | None = None
    why_not_neutral: str = ""


_NONE = Traits()


def traits_of(listener: Any) -> Traits:
    """Return the traits of an object or class; the defaults if it declares none, like a mock.

    Args:
        listener: An algorithm, a callback or a logger, or its class.

    >>> traits_of(object()).slot is None
    True
    """
    found = getattr(listener, "__traits__", None)
    return found if isinstance(found, Traits) else _NONE
