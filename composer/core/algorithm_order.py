"""Order the algorithms at an event (slots, algorithm passes), and warn about conflicting algorithms."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, TypeAlias

from composer.core.event import Event
from composer.core.traits import traits_of
from composer.warnings import NotIntendedUseWarning

if TYPE_CHECKING:
    from composer.core.algorithm import Algorithm

__all__ = ["AlgorithmPass", "Claim", "Slot", "arrange", "sort_to_back", "sort_to_front", "warn_of_conflicts"]

AlgorithmPass: TypeAlias = Callable[[Sequence["Algorithm"], Event], Sequence["Algorithm"]]
"""A user-defined reordering: receives the algorithms that listen to an event, in order, and returns the new order."""


class Slot(IntEnum):
    """Position of an algorithm in the order, regardless of the order that the user gave.

    Examples are selected before they are augmented, and augmented before their labels are softened; layers are
    replaced before the precision of layers is lowered. Algorithms without a slot run with those of ``AUGMENT``, in the
    user's order.

    >>> Slot.SELECT < Slot.AUGMENT < Slot.LABEL < Slot.SURGERY < Slot.PRECISION
    True
    """

    SELECT = 0
    AUGMENT = 1
    LABEL = 2
    SURGERY = 3
    PRECISION = 4


class Claim(StrEnum):
    """An exclusive effect, such as mixing the loss; two algorithms with the same claim conflict.

    >>> Claim.LOSS_MIX
    <Claim.LOSS_MIX: 'loss_mix'>
    """

    LOSS_MIX = "loss_mix"


_REMEDY = {Claim.LOSS_MIX: "Pass interpolate_loss=True to one of them only"}


def warn_of_conflicts(algorithms: Iterable[Algorithm]) -> None:
    """Warn if several algorithms claim the same effect, or if one declares a conflict with another.

    Args:
        algorithms: All algorithms of a run.

    >>> warn_of_conflicts([])
    """
    algorithms = list(algorithms)
    _warn_of_shared_claims(algorithms)
    names = {type(algorithm).__name__ for algorithm in algorithms}
    warned: set[frozenset[str]] = set()
    for algorithm in algorithms:
        name = type(algorithm).__name__
        for other, reason in traits_of(algorithm).conflicts_with.items():
            pair = frozenset({name, other})
            if other in names and pair not in warned:
                warned.add(pair)
                warnings.warn(f"{name} conflicts with {other}: {reason}", NotIntendedUseWarning, stacklevel=3)


def _warn_of_shared_claims(algorithms: Iterable[Algorithm]) -> None:
    claimants: dict[Claim, list[str]] = defaultdict(list)
    for algorithm in algorithms:
        for claim in traits_of(algorithm).claims:
            claimants[claim].append(type(algorithm).__name__)
    for claim, names in claimants.items():
        if len(names) > 1:
            number = "both" if len(names) == 2 else "all"
            message = (
                f"{' and '.join(names)} {number} claim {claim.value!r}: their effects would mix. {_REMEDY[claim]}."
            )
            warnings.warn(message, NotIntendedUseWarning, stacklevel=4)


def arrange(algorithms: Sequence[Algorithm], event: Event, passes: Iterable[AlgorithmPass]) -> list[Algorithm]:
    """Sort algorithms into the order in which they run at an event.

    Algorithms are sorted by slot, in the user's order within a slot; the order is reversed at events where each undoes
    its earlier changes. Then the passes are applied, which decide the final order.

    Args:
        algorithms: The algorithms that listen to the event, in the user's order.
        event: The event.
        passes: The user's reorderings, applied one after the other; they may remove algorithms and add others.

    Raises:
        ValueError: A pass returned something other than algorithms.

    >>> arrange([], Event.BATCH_END, passes=[])
    []
    """
    ordered = sorted(algorithms, key=_slot_of)
    if event.runs_last_to_first:
        ordered.reverse()
    for algorithm_pass in passes:
        returned = algorithm_pass(list(ordered), event)
        if isinstance(returned, Iterable):  # also one-shot iterators
            returned = list(returned)
        if not isinstance(returned, list) or not all(callable(getattr(a, "apply", None)) for a in returned):
            name = getattr(algorithm_pass, "__name__", repr(algorithm_pass))
            raise ValueError(
                f"algorithm_passes: {name} must return a list of algorithms, such as its input in another order; at "
                f"{event.value} it received {ordered} and returned {returned!r}."
            )
        ordered = returned
    return ordered


def _slot_of(algorithm: Algorithm) -> Slot:
    slot = traits_of(algorithm).slot
    return Slot.AUGMENT if slot is None else slot


def sort_to_front(algorithms: Sequence[Algorithm], cls: type) -> list[Algorithm]:
    """Move the algorithms of a class to the front; the order is kept otherwise.

    Args:
        algorithms: The algorithms.
        cls: The class whose instances go first.

    >>> sort_to_front([], object)
    []
    """
    return sorted(algorithms, key=lambda algorithm: not isinstance(algorithm, cls))


def sort_to_back(algorithms: Sequence[Algorithm], cls: type) -> list[Algorithm]:
    """Move the algorithms of a class to the back; the order is kept otherwise.

    Args:
        algorithms: The algorithms.
        cls: The class whose instances go last.

    >>> sort_to_back([], object)
    []
    """
    return sorted(algorithms, key=lambda algorithm: isinstance(algorithm, cls))
