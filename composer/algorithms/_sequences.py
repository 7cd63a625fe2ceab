"""Token sequences of a batch: get their number and length, and split them into shorter ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from composer import trees

__all__ = ["fold_sequences", "sequence_size"]


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


def fold_sequences(batch: Any, length: int) -> Any:
    """Return a batch whose tokens, read row by row, are written into rows of another length; a remainder is dropped.

    Args:
        batch: Any nested collection of tensors (B, S, ...); scalars are unchanged.
        length: Length of the new rows in tokens.

    Raises:
        ValueError: A tensor does not have the shape (B, S, ...), so it is not aligned with the tokens.

    >>> import torch
    >>> fold_sequences({"tokens": torch.arange(6).view(1, 6)}, 3)
    {'tokens': tensor([[0, 1, 2],
            [3, 4, 5]])}
    """
    size = sequence_size(batch)
    rows = size[0] * size[1] // length
    exact = rows * length == size[0] * size[1]

    def fold(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0:
            return tensor
        if tensor.shape[:2] != size:
            raise ValueError(
                f"Sequences can only be split if every tensor has a shape that starts with (B, S) = {size}, but one "
                f"has the shape {tuple(tensor.shape)}."
            )
        if exact:
            return tensor.reshape(rows, length, *tensor.shape[2:])
        return tensor.flatten(0, 1)[: rows * length].view(rows, length, *tensor.shape[2:])

    return trees.map_tensors(fold, batch)
