"""Describe the rows of a batch: shape, dtype, range and invalid values of their tensors; labels and decoded tokens."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from composer._containers import is_sequence
from composer._text import dtype_name
from composer.core.microbatches import split
from composer.core.types import Batch
from composer.warnings import ComposerWarning

__all__ = ["Field", "RowContents", "describe_rows"]

_IGNORED = -100
_TOKENS = "input_ids"
_MAX_TEXT = 80
# A constant tensor of fewer values, such as a scalar label, says nothing.
_MIN_VALUES = 3


@dataclass(frozen=True)
class Field:
    """A tensor or other value of a row.

    Attributes:
        name: Its key or position in the batch, such as "0" or "input_ids".
        shape: Shape without the batch dimension; None for values other than tensors.
        dtype: Its dtype or class.
        value: The value itself, if it is a single one.
        min: Smallest finite value; None for values other than tensors, and tensors without finite values.
        max: Largest finite value.
        mean: Mean of the finite values.
        num_non_finite: Number of values that are NaN or infinite.
        is_constant: Whether all values are equal, of at least three numbers, pixels or tokens.
        std: Standard deviation of the finite values.

    >>> Field("0", (3,), "float32", min=0.0, max=2.0, mean=1.0).line()
    '0: float32 (3,), min 0, max 2, mean 1'
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    value: Any = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    num_non_finite: int = 0
    is_constant: bool = False
    std: float | None = None

    def line(self) -> str:
        """Return a line of text."""
        if self.shape is None or self.value is not None:
            return f"{self.name}: {self.dtype} {self.value!r}"
        text = f"{self.name}: {self.dtype} {self.shape}"
        if self.min is not None:
            text += f", min {self.min:.4g}, max {self.max:.4g}, mean {self.mean:.4g}"
        if self.num_non_finite:
            text += f", {self.num_non_finite} not finite"
        return text


@dataclass(frozen=True)
class RowContents:
    """What a row of a batch contains.

    Attributes:
        fields: Its values.
        num_tokens: Number of tokens that are not padding, for batches with "input_ids".
        num_labels: Number of labels that are not -100, for batches with labels per token.
        text: Beginning of the decoded tokens, if there is a tokenizer.

    >>> RowContents((Field("1", (), "int64", value=3),)).lines()
    ['1: int64 3']
    """

    fields: tuple[Field, ...]
    num_tokens: int | None = None
    num_labels: int | None = None
    text: str | None = None

    @property
    def num_non_finite(self) -> int:
        """Number of values that are NaN or infinite."""
        return sum(one.num_non_finite for one in self.fields)

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of the tensors whose values are all equal."""
        return tuple(one.name for one in self.fields if one.is_constant)

    @property
    def statistics(self) -> tuple[float, ...]:
        """Magnitude and standard deviation of each tensor of floating-point numbers, to compare rows."""
        numbers = [one for one in self.fields if one.std is not None]
        pairs = ((max(abs(one.min or 0.0), abs(one.max or 0.0)), one.std or 0.0) for one in numbers)
        return tuple(value for pair in pairs for value in pair)

    def lines(self) -> list[str]:
        """Return lines of text."""
        lines = [one.line() for one in self.fields]
        if self.num_tokens is not None:
            labels = "" if self.num_labels is None else f", {self.num_labels} with a label"
            lines.append(f"{self.num_tokens} tokens{labels}")
        if self.text is not None:
            lines.append(f"text: {self.text!r}")
        return lines


def describe_rows(batch: Batch, tokenizer: Any = None) -> list[RowContents]:
    """Describe each row of a batch.

    Args:
        batch: The batch.
        tokenizer: Decodes ``"input_ids"``, with ``decode(ids)``; None shows no text.

    >>> rows = describe_rows(
    ...     (torch.tensor([[1.0, 2.0, float("nan")], [0.0, 0.0, 0.0]]), torch.tensor([3, 4]))
    ... )
    >>> print("\\n".join(rows[0].lines()))
    0: float32 (3,), min 1, max 2, mean 1.5, 1 not finite
    1: int64 3
    >>> rows[1].constant
    ('0',)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)  # values that belong to the full batch
        return [_describe(row, tokenizer) for row in split(batch, 1)]


def _describe(row: Batch, tokenizer: Any) -> RowContents:
    fields = tuple(_field(name or "batch", value) for name, value in _named_leaves(row))
    if not isinstance(row, Mapping) or not isinstance(tokens := cast("Mapping[str, Any]", row).get(_TOKENS), Tensor):
        return RowContents(fields)
    entries = cast("Mapping[str, Any]", row)
    ids, mask, labels = tokens.flatten(), entries.get("attention_mask"), entries.get("labels")
    if isinstance(mask, Tensor) and mask.numel() == ids.numel():
        ids = ids[mask.flatten().bool()]
    num_labels = int((labels != _IGNORED).sum()) if isinstance(labels, Tensor) else None
    text = None
    if tokenizer is not None:
        decoded = str(tokenizer.decode(ids.tolist()))
        text = decoded if len(decoded) <= _MAX_TEXT else decoded[:_MAX_TEXT] + "..."
    return RowContents(fields, int(ids.numel()), num_labels, text)


def _named_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested containers, with their keys joined by dots."""
    if isinstance(tree, Mapping):
        children = [(str(key), value) for key, value in cast("Mapping[Any, Any]", tree).items()]
    elif is_sequence(tree):
        children = [(str(number), value) for number, value in enumerate(tree)]
        if len(children) == 1 and prefix:
            children = [("", children[0][1])]  # the list of a single sample
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        children = [(one.name, getattr(tree, one.name)) for one in dataclasses.fields(tree)]
    else:
        yield prefix, tree
        return
    for name, value in children:
        yield from _named_leaves(value, ".".join(filter(None, (prefix, name))))


def _field(name: str, value: Any) -> Field:
    if not isinstance(value, Tensor):
        text = value if isinstance(value, (int, float, str, bool)) or value is None else repr(value)
        text = text if not isinstance(text, str) or len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
        return Field(name, None, type(value).__name__, value=text)
    # The first dimension counts the samples, of which there is one.
    shape = tuple(value.shape[1:]) if value.ndim and value.shape[0] == 1 else tuple(value.shape)
    dtype = dtype_name(value.dtype)
    if value.numel() == 0 or value.is_complex() or value.is_quantized:
        return Field(name, shape, dtype)
    numbers = value.detach().flatten().cpu().double()
    finite = numbers[numbers.isfinite()]
    # Not masks and labels, which may be constant.
    is_data = value.is_floating_point() or value.dtype == torch.uint8 or name.rpartition(".")[2] == _TOKENS
    single = numbers.numel() == 1 and not value.is_floating_point()
    if not finite.numel():
        return Field(name, shape, dtype, num_non_finite=numbers.numel(), std=math.nan)
    return Field(
        name,
        shape,
        dtype,
        value=int(finite[0]) if single else None,
        min=float(finite.min()),
        max=float(finite.max()),
        mean=float(finite.mean()),
        num_non_finite=numbers.numel() - finite.numel(),
        is_constant=is_data and numbers.numel() >= _MIN_VALUES and bool((numbers == numbers[0]).all()),
        std=float(finite.std(correction=0)) if value.is_floating_point() else None,
    )
