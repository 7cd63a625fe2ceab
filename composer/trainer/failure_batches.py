"""Notes on exceptions for batches of another form than the model expects."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from torch import Tensor

from composer._text import first_of
from composer.trainer.failure_facts import METHODS, Facts, described, tensors_in

__all__ = ["batch_form", "not_a_tensor", "one_sample", "unpacking"]

_NOT_TENSOR: Final = re.compile(
    r"must be tensor, not [\w.]+$|object has no attribute|invalid combination of arguments - got \("
)
# Messages of Python and torch, in lower case.
_BY_NAME: Final = re.compile(
    r"(tuple|list) indices must be integers or slices, not str|are valid indices \(got str\)|invalid data type 'str'"
)
_COUNT: Final = re.compile(r"too many values to unpack|not enough values to unpack")


def unpacking(batch: Any) -> str:
    """Return the code that takes the inputs and targets out of a batch.

    Args:
        batch: The batch.

    >>> unpacking((1, 2)), unpacking({"image": 1}), unpacking([1, 2, 3])
    ('x, y = batch', "image = batch['image']", 'x, y, z = batch')
    """
    if isinstance(batch, Mapping):
        keys = list(cast("Mapping[Any, Any]", batch))[:2]
        return ", ".join(f"{key} = batch[{key!r}]" for key in keys) or "x = batch['x']"
    if isinstance(batch, (list, tuple)):
        forms = {1: "x, = batch", 2: "x, y = batch", 3: "x, y, z = batch"}
        return forms.get(len(cast("Sequence[Any]", batch)), "x = batch[0]")
    return "x = batch"


def batch_form(facts: Facts) -> str | None:
    """Return a note on a method of the model that takes entries out of a batch that has others, or None.

    Args:
        facts: Facts about the exception.

    >>> import torch
    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> batch_form(facts_of(OSError("No space left on device"), State(model=torch.nn.Linear(1, 1))))
    """
    if facts.stage not in METHODS or not facts.is_in_model:
        return None  # the entries are not taken in the method itself
    frame, batch, error = facts.frames[-1], facts.batch, facts.error
    name = next((name for name, value in frame.f_locals.items() if value is batch), "")
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    shown = f"the batch is {described(batch)}"
    if name and re.search(rf"\b{name}\[", line):  # not another container in the same line, as far as it can be told
        if isinstance(error, KeyError) and isinstance(batch, Mapping) and error.args[0] not in batch:
            return f"{shown}, which has no key {error.args[0]!r}. Its keys: {first_of([*map(repr, batch)])}."
        if _BY_NAME.search(facts.text) and not isinstance(batch, Mapping):
            return f"{shown}, without keys. Take its entries by position: {unpacking(batch)}."
    if name and _COUNT.search(facts.text) and re.search(rf"=\s*{name}\s*(#.*)?$", line):
        return f"{shown}, which is unpacked to another number of values. Unpack it as it is: {unpacking(batch)}."
    return None


def one_sample(facts: Facts) -> str | None:
    """Return a note on batch normalization of a batch or microbatch of one sample, or None.

    Args:
        facts: Facts about the exception.

    >>> import torch
    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> one_sample(facts_of(OSError("No space left on device"), State(model=torch.nn.Linear(1, 1))))
    """
    if facts.stage != "forward" or "expected more than 1 value per channel" not in facts.text:
        return None
    tensors = tensors_in(facts.batch, "batch")
    if not tensors or any(tensor.ndim and len(tensor) != 1 for _, tensor in tensors):
        return None
    return (
        "the batch or microbatch has one sample, which batch normalization cannot normalize. If it is the rest of an "
        "epoch, leave it out: DataLoader(..., drop_last=True). If it is the rest of a batch, choose another "
        "device_train_microbatch_size."
    )


def not_a_tensor(facts: Facts) -> str | None:
    """Return a note on an entry of the batch that is used as a tensor, such as an array or text, or None.

    Args:
        facts: Facts about the exception.

    >>> import torch
    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> not_a_tensor(facts_of(OSError("No space left on device"), State(model=torch.nn.Linear(1, 1))))
    """
    error, batch = facts.error, facts.batch
    if facts.stage not in METHODS or not isinstance(error, (TypeError, AttributeError)):
        return None
    if not _NOT_TENSOR.search(facts.text):
        return None
    if isinstance(batch, Mapping) and re.search(r"not str$|got \(str\b", facts.text):
        key = next((key for key in cast("Mapping[Any, Any]", batch) if isinstance(key, str) and facts.takes(key)), None)
        if key is not None:
            return f"{key!r} is a key of the batch, {described(batch)}, not its value. Write {unpacking(batch)}."
    for path, value in _entries(batch):
        is_about = error.obj is value if isinstance(error, AttributeError) else facts.takes(value)
        if not isinstance(value, Tensor) and value is not None and is_about:
            return f"{path} is {_remedy(value)}"
    return None


def _entries(batch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, Mapping):
        for key, value in cast("Mapping[Any, Any]", batch).items():
            yield f"batch[{key!r}]", value
    elif isinstance(batch, (list, tuple)):
        for number, value in enumerate(cast("Sequence[Any]", batch)):
            yield f"batch[{number}]", value
    elif hasattr(batch, "ndim"):
        yield "batch", batch


def _remedy(value: Any) -> str:
    first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
    if isinstance(first, (str, bytes)):
        return (
            f"text, such as {first!r}, not a tensor. Give class indices or token ids instead, in the dataset or in the "
            f"collate_fn of the loader."
        )
    shape = getattr(value, "shape", None)
    if isinstance(shape, Sequence):
        sizes = tuple(cast("Sequence[int]", shape))
        return (
            f"a {type(value).__module__.partition('.')[0]} array of shape {sizes}, not a tensor. Convert "
            f"it in the data, torch.from_numpy(x), or use a DataLoader, which does."
        )
    return f"{described(value)}, not a tensor. Make it one, torch.as_tensor(x), in the dataset or in the collate_fn."
