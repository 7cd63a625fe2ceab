"""Check the arguments of a mixture: its sources with their names and weights, and the length of its epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from composer._numbers import whole_number
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.optim.schedule import ComposerScheduler, as_time

__all__ = ["STRATEGIES", "Weight", "epoch_batches", "expected_batches", "named_pairs"]

STRATEGIES = ("first_exhausted", "all_exhausted")

Weight: TypeAlias = float | ComposerScheduler | Callable[[Timestamp], float]
"""The weight of a source: a number, a schedule, or a function of the timestamp."""


def epoch_batches(epoch_length: Any, strategy: str | None) -> int:
    """Return the number of batches in an epoch.

    Args:
        epoch_length: The number, or a time in batches.
        strategy: ``stopping_strategy``, which must not be given as well.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not positive or has another unit, or a strategy is given.

    >>> epoch_batches("1000ba", None)
    1000
    """
    if strategy is not None:
        raise ValueError("Pass epoch_length or stopping_strategy, not both: either determines where an epoch ends.")
    if isinstance(epoch_length, (str, Time)):
        time = as_time("epoch_length", epoch_length, allow_zero=False)
        if time.unit is not TimeUnit.BATCH:
            raise ValueError(f"epoch_length must be a number of batches such as '1000ba', but got {str(time)!r}.")
        return int(time)
    return whole_number("epoch_length", epoch_length, minimum=1)


def expected_batches(
    weights: Mapping[str, float],
    per_step: Mapping[str, int | None],
    per_epoch: Mapping[str, int | None],
    strategy: str,
    drawn: int = 0,
) -> int | None:
    """Return the number of batches until the first or last source has yielded its samples; None if unknown.

    If source i has weight w_i and b_i samples in a step, a step has 1 / sum_i (w_i / b_i) samples on average, and its
    n_i samples are drawn once the mixture has n_i / w_i.

    Args:
        weights: The weight of each source; they sum to 1.
        per_step: Number of samples in a step of each source, on all ranks, or None.
        per_epoch: Number of samples in an epoch of each source, on all ranks, or None.
        strategy: ``"first_exhausted"`` or ``"all_exhausted"``.
        drawn: Number of samples drawn from the mixture before.

    >>> expected_batches({"a": 0.75, "b": 0.25}, {"a": 4, "b": 4}, {"a": 30, "b": 100}, "first_exhausted")
    10
    """
    steps_per_sample, ends = 0.0, list[float]()
    for name, weight in weights.items():
        step, samples = per_step[name], per_epoch[name]
        if not weight:
            continue
        if step is None or samples is None:
            return None
        steps_per_sample += weight / step
        ends.append(samples / weight)
    end = min(ends) if strategy == "first_exhausted" else max(ends)
    # A quotient such as 3 / 0.1 must not need another step because of rounding.
    return max(1, math.ceil((end - drawn) * steps_per_sample - 1e-9))


def named_pairs(sources: Any, names: Sequence[str] | None) -> dict[str, tuple[Any, Weight]]:
    """Return the loader and the weight of each source by name.

    Args:
        sources: Pairs, or a mapping to pairs.
        names: The names of pairs without names, or None.

    Raises:
        TypeError: The sources are not pairs, or a name is not a string.
        ValueError: There is no source, names are not unique, or a loader is given twice.

    >>> named_pairs([([1, 2], 1.0)], None)
    {'source_0': ([1, 2], 1.0)}
    """
    if isinstance(sources, Mapping):
        if names is not None:
            raise ValueError("sources is a mapping, which has names already; pass no names.")
        names, entries = list(cast("Mapping[str, Any]", sources)), list(cast("Mapping[str, Any]", sources).values())
    elif isinstance(names, str):
        raise TypeError(f"names must be a list with a name for each source, but got the string {names!r}.")
    elif isinstance(sources, Sequence) and not isinstance(sources, str):
        entries = list(cast("Sequence[Any]", sources))
        names = [f"source_{number}" for number in range(len(entries))] if names is None else list(names)
    else:
        raise TypeError(f"sources must be a list of pairs (loader, weight), or a mapping to them, but got {sources!r}.")
    if not entries:
        raise ValueError("sources is empty; pass at least one pair (loader, weight).")
    if len(names) != len(entries):
        raise ValueError(f"names must have one name for each of the {len(entries)} sources, but got {list(names)}.")
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"The name of a source must be a nonempty string, but got {name!r}.")
        if name == "total":
            raise ValueError("No source can be named 'total': loss/train/total is the loss of all steps. Rename it.")
        if list(names).count(name) > 1:
            raise ValueError(f"names must be unique, but {name!r} is given twice: {list(names)}.")
    for name, entry in zip(names, entries, strict=True):
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(cast("Sequence[Any]", entry)) != 2:
            raise TypeError(f"source {name!r} must be a pair (loader, weight), but got {entry!r}.")
    found: dict[str, tuple[Any, Weight]] = {
        name: (entry[0], entry[1]) for name, entry in zip(names, entries, strict=True)
    }
    loaders = {id(loader): name for name, (loader, _) in found.items()}
    if len(loaders) < len(found):
        name = next(name for name, (loader, _) in found.items() if loaders[id(loader)] != name)
        raise ValueError(
            f"The sources {name!r} and {loaders[id(found[name][0])]!r} are the same loader, which has one position. "
            f"Create a loader for each."
        )
    return found
