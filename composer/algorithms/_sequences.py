"""Token sequences of a batch: get their number and length, and split them into shorter ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from composer import trees

__all__ = ["fold_sequences", "sequence_size", "square_mask_test"]

# What the keys of attention masks contain.
_MASK_NAMES = ("mask", "bias")


def sequence_size(batch: Any) -> tuple[int, int]:
    """Return the number of sequences in a batch and their length in tokens.

    Read from ``input_ids``, or else from the first tensor with two dimensions or more.

    >>> import torch
    >>> sequence_size({"length": torch.zeros(2), "tokens": torch.zeros(2, 5)})
    (2, 5)
    """
    if isinstance(batch, Mapping):
        ids = cast("Mapping[str, Any]", batch).get("input_ids")
        if isinstance(ids, Tensor) and ids.ndim >= 2:
            return ids.shape[0], ids.shape[1]
    for leaf in trees.leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim >= 2:
            return leaf.shape[0], leaf.shape[1]
    raise ValueError(
        f"The batch, of type {type(batch).__name__}, has no tensor of sequences, (B, S): there is nothing to split."
    )


def square_mask_test(batch: Any, size: tuple[int, int]) -> Callable[[Tensor], bool]:
    """Return a function that tells whether a tensor of a batch is a square attention mask, (..., S, S).

    A floating-point (B, S, S) may be features, of which there happen to be as many as tokens. It is a mask if its key
    in the batch says so, by "mask" or "bias".

    Args:
        batch: The batch.
        size: The number of sequences and their length, (B, S).

    >>> import torch
    >>> batch = {"attention_mask": torch.zeros(2, 5, 5), "inputs_embeds": torch.zeros(2, 5, 5)}
    >>> is_mask = square_mask_test(batch, (2, 5))
    >>> is_mask(batch["attention_mask"]), is_mask(batch["inputs_embeds"]), is_mask(torch.zeros(2, 1, 5, 5))
    (True, False, True)
    """
    entries = cast("Mapping[Any, Any]", batch) if isinstance(batch, Mapping) else {}
    named = [id(value) for key, value in entries.items() if any(name in str(key).lower() for name in _MASK_NAMES)]

    def is_square_mask(tensor: Tensor) -> bool:
        shape, full = tensor.shape, size[1]
        if shape == size or shape[-2:] != (full, full):
            return False
        may_be_features = len(shape) == 3 and shape[:2] == size and tensor.is_floating_point()
        return not may_be_features or id(tensor) in named

    return is_square_mask


def fold_sequences(batch: Any, length: int) -> Any:
    """Return a batch whose tokens, read row by row, are written into rows of another length; a remainder is dropped.

    Args:
        batch: Any nested collection of tensors (B, S, ...); scalars are unchanged.
        length: Length of the new rows in tokens.

    Raises:
        ValueError: A tensor does not have the shape (B, S, ...), so it is not aligned with the tokens, or it is a
            square attention mask, whose sequences would be in several rows.

    >>> import torch
    >>> fold_sequences({"tokens": torch.arange(6).view(1, 6)}, 3)
    {'tokens': tensor([[0, 1, 2],
            [3, 4, 5]])}
    """
    size = sequence_size(batch)
    rows = size[0] * size[1] // length
    exact = rows * length == size[0] * size[1]
    is_square_mask = square_mask_test(batch, size)

    def fold(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0:
            return tensor
        if tensor.shape[:2] != size:
            raise ValueError(
                f"Sequences can only be split if every tensor has a shape that starts with (B, S) = {size}, but one "
                f"has the shape {tuple(tensor.shape)}."
            )
        if is_square_mask(tensor):
            raise ValueError(
                f"Sequences can only be split without square attention masks, but the batch has one of the shape "
                f"{tuple(tensor.shape)}. Use truncate=True, or a mask of padding, (B, S)."
            )
        if exact:
            return tensor.reshape(rows, length, *tensor.shape[2:])
        return tensor.flatten(0, 1)[: rows * length].view(rows, length, *tensor.shape[2:])

    return trees.map_tensors(fold, batch)
