"""The order in which algorithms run at an event, and what no two of them may do at once."""

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
"""A user's reordering: gets the algorithms that listen to an event as they would run, returns the order wanted."""


class Slot(IntEnum):
    """Where in the order a kind of algorithm belongs, whatever order the user gave.

    Examples are selected before they are augmented, augmented before their labels are softened; layers are replaced
    before the precision of layers is lowered. Algorithms without a slot run after ``SELECT`` and before ``PRECISION``
    at the place where the user put them among those of ``AUGMENT``.

    >>> Slot.SELECT < Slot.AUGMENT < Slot.LABEL < Slot.SURGERY < Slot.PRECISION
    True
    """

    SELECT = 0
    AUGMENT = 1
    LABEL = 2
    SURGERY = 3
    PRECISION = 4


class Claim(StrEnum):
    """A thing that only one algorithm may do in a run.

    >>> Claim.LOSS_MIX
    <Claim.LOSS_MIX: 'loss_mix'>
    """

    LOSS_MIX = "loss_mix"


_REMEDY = {Claim.LOSS_MIX: "Give interpolate_loss=True to one of them only"}


def warn_of_conflicts(algorithms: Iterable[Algorithm]) -> None:
    """Warn where several algorithms claim the same thing, or one says that it composes badly with another.

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
                warnings.warn(f"{name} composes badly with {other}: {reason}", NotIntendedUseWarning, stacklevel=3)


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
    """Put algorithms in the order in which they run at an event.

    By slot first, the user's order within a slot; last to first where each is to undo what it did before; then
    through the passes, which have the last word.

    Args:
        algorithms: Those that listen to the event, in the user's order.
        event: The event.
        passes: The user's reorderings, applied one after the other; they may leave out algorithms and add others.

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
        if isinstance(returned, Iterable):  # one that can be read only once too
            returned = list(returned)
        if not isinstance(returned, list) or not all(callable(getattr(a, "apply", None)) for a in returned):
            name = getattr(algorithm_pass, "__name__", repr(algorithm_pass))
            raise ValueError(
                f"algorithm_passes: {name} must return a list of algorithms, such as those that it got in another "
                f"order; at {event.value} it got {ordered} and returned {returned!r}."
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
