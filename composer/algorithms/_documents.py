"""Documents of tokens: convert their values to one tensor for each key, without padding, to pack them into rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from composer._text import plural, shortened

__all__ = ["as_documents", "document_keys", "flat_tokens", "sums"]

# Dtypes that torch can neither index nor compare.
_STORED_ONLY = (torch.uint16, torch.uint32, torch.uint64)


def as_documents(documents: Iterable[Any]) -> list[Any]:
    """Return the documents as a list, unless they are a batch, or none.

    Args:
        documents: The argument of the user.

    Raises:
        TypeError: It is a mapping, or cannot be iterated over.
        ValueError: It is empty.

    >>> as_documents(iter([[1, 2], [3]]))
    [[1, 2], [3]]
    """
    if isinstance(documents, Mapping):
        keys = ", ".join(map(str, documents))
        raise TypeError(
            f"documents is a mapping with the keys {keys}, as a padded batch is, but must be a sequence of documents. "
            f"Pass one mapping for each document: [{{'input_ids': ...}}, {{'input_ids': ...}}, ...]."
        )
    try:
        values = iter(documents)
    except TypeError as error:
        raise TypeError(
            f"documents must be a sequence of documents, but got {shortened(repr(documents), 60)}. Pass a list of "
            f"sequences of token ids: [[5, 6, 7], [8, 9]]."
        ) from error
    found = list(values)
    if not found:
        raise ValueError("documents is empty: there is nothing to pack.")
    return found


def document_keys(documents: Sequence[Any]) -> list[str]:
    """Return the keys of documents: those of the first one, without the attention mask.

    Args:
        documents: The documents, at least one.

    >>> document_keys([[5, 6]]), document_keys([{"input_ids": [5], "attention_mask": [1], "labels": [5]}])
    (['input_ids'], ['input_ids', 'labels'])
    """
    first = documents[0]
    if not isinstance(first, Mapping):
        return ["input_ids"]
    return [key for key in cast("Mapping[str, Any]", first) if key != "attention_mask"]


def flat_tokens(
    documents: Sequence[Any], max_seq_length: int, only: Collection[str] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the tokens of all documents, one after the other and without padding, by key, and the lengths, (N,).

    Args:
        documents: The documents, at least one.
        max_seq_length: No document may be longer.
        only: The keys to convert besides ``input_ids``; all by default.

    Raises:
        TypeError: A value cannot be converted to a tensor, or token ids are not integers.
        ValueError: A document is empty or too long, the documents have different keys, or a value does not have one
            entry for each token.

    >>> flat_tokens([[5, 6], [7]], max_seq_length=4)
    ({'input_ids': tensor([5, 6, 7])}, tensor([2, 1]))
    """
    tensors, masks = _columns(documents, only)
    shapes = [each.shape for each in tensors["input_ids"]]
    for key, values in tensors.items():
        _require_one_entry_per_token(key, values, shapes)
    sizes = [shape[0] for shape in shapes]
    lengths = torch.tensor(sizes)
    # Rows are assembled on the CPU; one copy for each key, if the documents are elsewhere.
    flat = {key: torch.cat(values).cpu() for key, values in tensors.items()}
    if any(mask is not None for mask in masks):
        given = [torch.ones(shape) if mask is None else mask.cpu() for shape, mask in zip(shapes, masks, strict=True)]
        _require_one_entry_per_token("attention_mask", given, shapes)
        present = _present(torch.cat(given))
        flat = {key: values[present] for key, values in flat.items()}
        lengths = sums(present.long(), lengths)
        sizes = lengths.tolist()
    if not 1 <= min(sizes) <= max(sizes) <= max_seq_length:
        index = next(index for index, size in enumerate(sizes) if not 1 <= size <= max_seq_length)
        raise ValueError(
            f"documents[{index}] has {plural(sizes[index], 'token')}, but a row holds between 1 and "
            f"max_seq_length={max_seq_length}. Cut longer documents, and leave out empty ones."
        )
    if flat["input_ids"].is_floating_point() or flat["input_ids"].is_complex():
        raise _not_integers(tensors["input_ids"])
    return flat, lengths


def sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over each document of values that follow one another, (N,).

    Args:
        values: The values of all tokens.
        lengths: The number of tokens of each document, (N,).

    >>> sums(torch.tensor([1, 2, 3]), torch.tensor([2, 1]))
    tensor([3, 3])
    """
    document = torch.arange(len(lengths)).repeat_interleave(lengths)
    return values.new_zeros(len(lengths)).index_add(0, document, values)


def _columns(
    documents: Sequence[Any], only: Collection[str] | None
) -> tuple[dict[str, list[Tensor]], list[Tensor | None]]:
    """Return the values of all documents by key, and their attention masks."""
    if all(isinstance(document, Tensor) for document in documents):
        return {
            "input_ids": [_computable(index, "input_ids", document) for index, document in enumerate(documents)]
        }, []
    tensors: dict[str, list[Tensor]] = {}
    masks: list[Tensor | None] = []
    for index, document in enumerate(documents):
        # Tensors first, since to ask whether an object is a mapping takes longer.
        if isinstance(document, Tensor) or not isinstance(document, Mapping):
            document = {"input_ids": document}
        given = cast("Mapping[str, Any]", document)
        if "input_ids" not in given:
            raise ValueError(f"documents[{index}] has no 'input_ids', only {', '.join(map(str, given))}.")
        fields = {
            key: _as_tensor(index, key, value)
            for key, value in given.items()
            if only is None or key in ("input_ids", "attention_mask") or key in only
        }
        masks.append(fields.pop("attention_mask", None))
        if not tensors:
            tensors = {key: [] for key in fields}
        if fields.keys() != tensors.keys():
            raise ValueError(
                f"All documents must have the same keys, but documents[0] has {', '.join(tensors)} and "
                f"documents[{index}] has {', '.join(fields)}."
            )
        for key, value in fields.items():
            tensors[key].append(value)
    return tensors, masks


def _as_tensor(index: int, key: str, value: Any) -> Tensor:
    """Return the values of a document under a key as a tensor."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # torch warns of read-only arrays, such as those of memory-mapped files
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if "verflow" in str(error):  # an integer of Python
            raise _too_large(index, key) from error
        if key == "input_ids":
            remedy = "Convert texts to token ids first."
        else:
            remedy = (
                "Leave the key out in all documents, or list the keys to return "
                "without it in SequencePacking(keep=[...])."
            )
        raise TypeError(
            f"documents[{index}][{key!r}] must have one number for each token, but is "
            f"{shortened(repr(value), 60)}. {remedy}"
        ) from error
    return _computable(index, key, tensor)


def _computable(index: int, key: str, tensor: Tensor) -> Tensor:
    """Return the values of a document in a dtype that torch can compute with."""
    if tensor.dtype not in _STORED_ONLY:
        return tensor
    signed = tensor.long()
    if tensor.dtype == torch.uint64 and (signed < 0).any():
        raise _too_large(index, key)
    return signed


def _too_large(index: int, key: str) -> ValueError:
    """Return the error for a document with an integer that torch.int64 cannot hold."""
    return ValueError(
        f"documents[{index}][{key!r}] has an integer of 2**63 or more, which torch.int64 cannot hold. Check the dtype "
        f"in which the file was written, or leave the key out in all documents."
    )


def _present(mask: Tensor) -> Tensor:
    """Return which tokens an attention mask does not declare as padding."""
    if not (mask >= 0).all():
        wrong = mask.min().item()  # NaN if there is one
        rule = f"The attention masks of documents must be 1 for tokens and 0 for padding, but contain {wrong:g}"
        if math.isnan(wrong):
            raise ValueError(f"{rule}. Compute the mask from the lengths of the documents instead.")
        raise ValueError(f"{rule}, as masks that are added to scores do. Pass attention_mask == 0 of these instead.")
    return mask.bool()


def _not_integers(ids: Sequence[Tensor]) -> TypeError:
    """Return the error for the first document whose token ids are no integers."""
    index, one = next((i, one) for i, one in enumerate(ids) if one.is_floating_point() or one.is_complex())
    return TypeError(
        f"documents[{index}]['input_ids'] must be integers, but is {shortened(repr(one.tolist()), 60)} of {one.dtype}. "
        f"If these are token ids, convert them first: torch.as_tensor(input_ids).long()."
    )


def _require_one_entry_per_token(key: str, values: Sequence[Tensor], shapes: Sequence[torch.Size]) -> None:
    """Raise ValueError for the first document whose values are not as many as its tokens."""
    for index, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        if key == "input_ids" and len(shape) != 1:
            remedy = "Pass [input_ids] for a single document." if not shape else "Pass its rows as documents."
            raise ValueError(
                f"documents[{index}] must be a sequence of token ids, (n,), but has the shape {tuple(shape)}. {remedy}"
            )
        if value.shape != shape:
            raise ValueError(
                f"documents[{index}][{key!r}] must have one entry for each of its {shape.numel()} tokens, but has "
                f"the shape {tuple(value.shape)}. Leave out keys that describe the entire document."
            )
