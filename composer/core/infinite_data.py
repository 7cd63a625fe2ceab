"""Detect infinite data, such as ``itertools.cycle``, and warn of very long epochs and evaluations."""

from __future__ import annotations

import inspect
import itertools
import operator
import time
import types
import warnings
from collections.abc import Iterator
from dis import get_instructions
from typing import Any, Final, cast

from torch.utils.data import BatchSampler, ChainDataset, DataLoader, IterableDataset

from composer.core.sample_order import length_of
from composer.warnings import ComposerWarning

__all__ = ["EFFECTIVELY_INFINITE", "LongEpochWatch", "infinite_reason", "raise_if_infinite"]

# Lengths from here on count as infinite: at a microsecond per batch, an epoch would take eleven days.
EFFECTIVELY_INFINITE: Final = 10**12


def infinite_reason(data: Any) -> str | None:
    """Return why data is known to be infinite, or None if it is finite or cannot be known without reading it.

    Detects infinite iterators of :mod:`itertools`, also inside ``map``, ``zip``, ``filter``, ``enumerate`` and
    generator expressions; generator functions, and ``__iter__`` methods written as such, that have no way to return
    (``while True`` without ``break`` or ``return``); loaders of such datasets or samplers; infinite lengths;
    ``repeat`` of Hugging Face ``datasets`` and of WebDataset without a number.

    Args:
        data: A loader, dataset, sampler or iterator.

    >>> infinite_reason(map(str, itertools.cycle([1, 2])))
    'itertools.cycle yields without end'
    >>> infinite_reason([1, 2]) is None
    True
    """
    if (length := _declared(data)) is not None:
        return f"its length is {length}" if length >= EFFECTIVELY_INFINITE else None
    if isinstance(data, (itertools.cycle, itertools.count)):
        return f"itertools.{type(data).__name__} yields without end"
    if isinstance(data, itertools.repeat):
        return None if operator.length_hint(data, -1) >= 0 else "itertools.repeat has no number of times"
    if isinstance(data, (map, filter)) and not _never_stops(data.__reduce__()[1][0]):
        return None
    if isinstance(data, (map, filter, zip, enumerate)):
        # The arguments, without the function of map and filter and the start of enumerate.
        parts = [part for part in data.__reduce__()[1] if isinstance(part, Iterator)]
        found = [infinite_reason(part) for part in parts]
        return found[0] if found and None not in found else None
    if isinstance(data, types.GeneratorType):
        return _of_generator(data)
    method = getattr(type(data), "__iter__", None)
    if isinstance(method, types.FunctionType) and _never_returns(method.__code__):
        return f"{method.__qualname__} has no way to return"
    return _of_source(data)


def raise_if_infinite(what: str, data: Any, remedy: str) -> None:
    """Raise an error for data that is known to be infinite but would be read to its end.

    Args:
        what: Subject of the error message, such as the argument.
        data: The data.
        remedy: What to do instead, as a sentence.

    Raises:
        ValueError: The data is infinite.

    >>> raise_if_infinite("eval_dataloader", itertools.count(), "Pass eval_subset_num_batches.")
    Traceback (most recent call last):
    ...
    ValueError: eval_dataloader never ends: itertools.count yields without end. Pass eval_subset_num_batches.
    """
    why = infinite_reason(data)
    if why is not None:
        raise ValueError(f"{what} never ends: {why}. {remedy}")


class LongEpochWatch:
    """Warns once if an iteration over data of unknown length becomes so long that the data may be infinite.

    Args:
        message: Text of the warning.
        seconds: Seconds after which to warn.
        batches: Number of batches after which to warn.

    >>> watch = LongEpochWatch("This may be endless.", batches=2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for number in range(1, 5):
    ...         watch.update(number)
    >>> [str(warning.message) for warning in caught]
    ['This may be endless.']
    """

    def __init__(self, message: str, seconds: float = 600.0, batches: int = 100_000) -> None:
        self._message, self._seconds, self._batches = message, seconds, batches
        self._begun = time.perf_counter()
        self._warned = False

    def update(self, number: float) -> None:
        """Check the iteration after another batch.

        Args:
            number: Number of batches so far.
        """
        if self._warned or (number < self._batches and time.perf_counter() - self._begun < self._seconds):
            return
        self._warned = True
        warnings.warn(self._message, ComposerWarning, stacklevel=3)


def _declared(data: Any) -> float | None:
    """Return the declared length of data, including values that :func:`len` does not accept."""
    length, method = length_of(data), getattr(type(data), "__len__", None)
    if length is not None or method is None:
        return length
    try:
        length = method(data)
    except (TypeError, NotImplementedError):
        return None
    return length if isinstance(length, (int, float)) and length >= EFFECTIVELY_INFINITE else None


def _of_generator(generator: types.GeneratorType[Any, Any, Any]) -> str | None:
    if _never_returns(generator.gi_code):
        return f"{generator.__qualname__} has no way to return"
    if generator.gi_code.co_name == "<genexpr>" and generator.gi_frame is not None:
        return infinite_reason(generator.gi_frame.f_locals.get(".0"))
    return None


def _never_stops(function: Any) -> bool:
    """Return whether a function of ``map`` or ``filter`` is known not to raise ``StopIteration``, which ends them."""
    is_known = function is None or isinstance(function, (type, types.BuiltinFunctionType))
    return is_known and getattr(function, "__name__", "") not in ("next", "__next__")


def _never_returns(code: types.CodeType) -> bool:
    """Return whether a generator function loops and can end only by an exception in a function that it calls."""
    if not code.co_flags & inspect.CO_GENERATOR:
        return False
    # The compiler drops an unreachable return. A raise may be how the function ends.
    steps = {step.opname for step in get_instructions(code)}
    loops = any("JUMP_BACKWARD" in step and "NO_INTERRUPT" not in step for step in steps)
    return loops and not steps & {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS"}


def _of_source(data: Any) -> str | None:
    """Check the source of a loader or dataset of a known class."""
    if isinstance(data, DataLoader):
        if not _is_of(type(data).__iter__, "torch", "torchdata"):
            return None
        loader = cast("DataLoader[Any]", data)
        if isinstance(loader.dataset, IterableDataset):
            return infinite_reason(loader.dataset)
        return infinite_reason(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    if type(data) is BatchSampler:
        return infinite_reason(data.sampler)
    if type(data) is ChainDataset:
        return next(filter(None, map(infinite_reason, data.datasets)), None)
    if _is_of(type(data), "datasets"):
        return _of_examples(getattr(data, "_ex_iterable", None))
    if _is_of(type(data), "webdataset"):
        return _of_pipeline(data)
    return None


def _is_of(thing: Any, *packages: str) -> bool:
    return thing.__module__.partition(".")[0] in packages


def _of_examples(examples: Any) -> str | None:
    """Walk the steps of a Hugging Face iterable dataset from the last to the first."""
    while examples is not None and "Take" not in type(examples).__name__:
        if getattr(examples, "num_times", 0) is None:
            return "repeat(None) has no number of times"
        examples = getattr(examples, "ex_iterable", None)
    return None


def _of_pipeline(data: Any) -> str | None:
    """Check a WebDataset for unlimited repetitions and resampled shards."""
    stages: list[Any] = getattr(data, "pipeline", [])
    if not stages or getattr(data, "nsamples", 0) > 0:  # with_epoch
        return None
    if getattr(data, "repetitions", 1) >= EFFECTIVELY_INFINITE:
        return "repeat() has no number of times"
    functions = [getattr(stage, "f", stage) for stage in stages[1:]]
    if any("slice" in getattr(f, "__name__", "") or not _is_of(f, "webdataset") for f in functions):
        return None
    if getattr(stages[0], "nshards", 0) >= EFFECTIVELY_INFINITE:
        return "its shards are resampled without end; with_epoch(...) gives it an epoch"
    return infinite_reason(stages[0]) if isinstance(stages[0], DataLoader) else None
