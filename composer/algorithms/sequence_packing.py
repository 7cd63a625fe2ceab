"""Sequence packing: fill each row with complete documents that cannot attend to each other.

    attend(i, j)  only if  document(i) = document(j)

Padding wastes computation; packed rows have almost none. With a mask and position ids per document, the model computes
the same as for each document alone.

Paper: Efficient Sequence Packing without Cross-contamination, Krell et al. 2021, https://arxiv.org/abs/2107.02027
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from composer._text import did_you_mean, one_of, plural, positive

__all__ = ["SequencePacking", "block_diagonal_mask", "pack_sequences"]

_WEIGHTS = ("token", "document")
_IGNORED = -100


def block_diagonal_mask(document_ids: Tensor, causal: bool = False) -> Tensor:
    """Return which tokens attend to which, (B, 1, S, S): True if tokens i and j are in the same document.

    This is the mask format of ``torch.nn.functional.scaled_dot_product_attention``, and of the ``attention_mask`` of
    ``transformers`` models that use it. It is computed on the device of the ids, which are much smaller to transfer.
    Padding attends to padding, so that no row of scores is empty.

    Args:
        document_ids: The document of each token, (B, S), as :func:`pack_sequences` returns them.
        causal: Whether a token attends only to itself and earlier tokens.

    >>> block_diagonal_mask(torch.tensor([[1, 1, 2]])).int()[0, 0]
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    mask = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return mask.tril() if causal else mask


def pack_sequences(
    documents: Sequence[Any],
    max_seq_length: int,
    causal: bool = True,
    weights: str = "token",
    padding: Mapping[str, int] | None = None,
    num_rows: int | None = None,
) -> dict[str, Tensor]:
    """Pack documents into rows of tokens, longest first.

    Args:
        documents: Each a sequence of token ids, (n,), or a mapping with ``"input_ids"`` and further sequences of the
            same length, such as ``"labels"``. An ``"attention_mask"`` marks padding, which is removed.
        max_seq_length: S, the length of a row in tokens; no document may be longer.
        causal: Whether the model predicts the next token. Then labels default to the tokens, and the first label of
            each document is ignored: it has no context.
        weights: What has equal weight in a loss weighted with ``loss_weights``: each ``"token"`` that has a label, or
            each ``"document"``, as in the mean of per-document means with one document per row.
        padding: Padding value by key; -100 for labels and 0 for others by default.
        num_rows: B, the number of rows, padded with empty ones, for constant shapes; as many as needed by default.

    Returns:
        Tensors (B, S): ``input_ids`` and the other keys of the documents; ``labels``, -100 where ignored;
        ``position_ids``, from 0 in each document; ``document_ids``, from 1 in each row, 0 for padding; and
        ``loss_weights``, 0 where there is no label. The loss is ``(weights * losses).sum() / weights.sum()``.

    Raises:
        ValueError: A document is empty or too long, there are too many for the rows, or the documents have different
            keys.

    >>> packed = pack_sequences([[5, 6, 7], [8, 9], [3]], max_seq_length=4)
    >>> packed["input_ids"]
    tensor([[5, 6, 7, 3],
            [8, 9, 0, 0]])
    >>> packed["position_ids"][0], packed["document_ids"][0], packed["labels"][1]
    (tensor([0, 1, 2, 0]), tensor([1, 1, 1, 2]), tensor([-100,    9, -100, -100]))

    Paper: https://arxiv.org/abs/2107.02027 (Krell et al. 2021)
    """
    positive("max_seq_length", max_seq_length)
    one_of("weights", weights, _WEIGHTS)
    found = [_as_tensors(document, index, max_seq_length) for index, document in enumerate(documents)]
    keys = _common_keys(found)
    if causal or "labels" in keys:
        found = [_with_labels(document, causal) for document in found]
        keys = list(found[0])
    rows = _assign([len(document["input_ids"]) for document in found], max_seq_length)
    size = len(rows) if num_rows is None else num_rows
    if len(rows) > size:
        raise ValueError(
            f"{plural(len(found), 'document')} need {plural(len(rows), 'row')} of {max_seq_length} tokens, but "
            f"num_rows is {num_rows}. Increase num_rows, or pack fewer documents at a time."
        )
    fill = {"labels": _IGNORED, **(padding or {})}
    packed = {key: torch.full((size, max_seq_length), fill.get(key, 0), dtype=found[0][key].dtype) for key in keys}
    packed |= {key: torch.zeros(size, max_seq_length, dtype=torch.long) for key in ("position_ids", "document_ids")}
    packed["loss_weights"] = torch.zeros(size, max_seq_length)
    for row, members in enumerate(rows):
        start = 0
        for number, member in enumerate(members, start=1):
            document = found[member]
            length = len(document["input_ids"])
            span = slice(start, start + length)
            for key in keys:
                packed[key][row, span] = document[key]
            packed["position_ids"][row, span] = torch.arange(length)
            packed["document_ids"][row, span] = number
            packed["loss_weights"][row, span] = _loss_weights(document, weights)
            start += length
    return packed


class SequencePacking:
    """:func:`pack_sequences` as the ``collate_fn`` of a ``DataLoader`` whose dataset returns documents.

    Pass ``document_ids`` to :func:`block_diagonal_mask` on the device, or let causal models of ``transformers`` infer
    documents from ``position_ids``: these do so only without ``attention_mask`` and with ``use_cache=False``. Since a
    batch has a fixed number of documents, not of rows, set ``num_rows`` if shapes must not change.

    When to use it:
        For documents of very different lengths, whose batches are mostly padding: instruction fine-tuning,
        pretraining on short texts.

    When not to:
        For documents of equal length, and for models that do not accept positions and masks per document.

    How to choose:
        ``weights="document"`` if each document should have equal weight, as in a padded batch; ``num_rows`` if
        shapes must not change.

    Cost:
        Packing sorts the lengths of a batch, on the CPU in the DataLoader workers. The per-document mask disables some
        attention kernels.

    Args:
        max_seq_length: S, the length of a row in tokens.
        causal: Whether the model predicts the next token.
        weights: Whether each ``"token"`` or each ``"document"`` has equal weight.
        padding: Padding value by key.
        num_rows: B, the number of rows; as many as needed by default.
        keep: The keys to return; all by default. Models of ``transformers`` reject unknown keys.

    Raises:
        ValueError: An argument is out of range.

    >>> collate = SequencePacking(4, keep=["input_ids", "position_ids"])
    >>> collate([[5, 6, 7], [8]])
    {'input_ids': tensor([[5, 6, 7, 8]]), 'position_ids': tensor([[0, 1, 2, 0]])}

    Paper: https://arxiv.org/abs/2107.02027 (Krell et al. 2021)
    """

    def __init__(
        self,
        max_seq_length: int,
        causal: bool = True,
        weights: str = "token",
        padding: Mapping[str, int] | None = None,
        num_rows: int | None = None,
        keep: Sequence[str] | None = None,
    ) -> None:
        self.max_seq_length = positive("max_seq_length", max_seq_length)
        self.causal = causal
        self.weights = one_of("weights", weights, _WEIGHTS)
        self.padding = padding
        self.num_rows = None if num_rows is None else positive("num_rows", num_rows)
        self.keep = keep

    def __call__(self, documents: Sequence[Any]) -> dict[str, Tensor]:
        """Pack the documents of a batch."""
        packed = pack_sequences(documents, self.max_seq_length, self.causal, self.weights, self.padding, self.num_rows)
        if self.keep is None:
            return packed
        for key in self.keep:
            if key not in packed:
                raise ValueError(
                    f"keep contains {key!r}, which is not among {', '.join(packed)}.{did_you_mean(key, packed)}"
                )
        return {key: packed[key] for key in self.keep}


def _as_tensors(document: Any, index: int, max_seq_length: int) -> dict[str, Tensor]:
    """Return a document as tensors of equal length, without padding."""
    fields = cast("Mapping[str, Any]", document) if isinstance(document, Mapping) else {"input_ids": document}
    if "input_ids" not in fields:
        raise ValueError(f"documents[{index}] has no 'input_ids', only {', '.join(map(str, fields))}.")
    tensors = {key: torch.as_tensor(value) for key, value in fields.items()}
    mask = tensors.pop("attention_mask", None)
    shape = tensors["input_ids"].shape
    for key, tensor in tensors.items():
        if tensor.ndim != 1 or tensor.shape != shape:
            raise ValueError(
                f"documents[{index}][{key!r}] must have one entry for each of its {shape.numel()} tokens, but has the "
                f"shape {tuple(tensor.shape)}. Leave out keys that describe the entire document."
            )
    if mask is not None:
        tensors = {key: tensor[mask.bool()] for key, tensor in tensors.items()}
    length = len(tensors["input_ids"])
    if not 0 < length <= max_seq_length:
        raise ValueError(
            f"documents[{index}] has {plural(length, 'token')}, but a row holds between 1 and "
            f"max_seq_length={max_seq_length}. Cut longer documents, and leave out empty ones."
        )
    return tensors


def _common_keys(found: list[dict[str, Tensor]]) -> list[str]:
    if not found:
        raise ValueError("documents is empty: there is nothing to pack.")
    for index, document in enumerate(found):
        if document.keys() != found[0].keys():
            raise ValueError(
                f"All documents must have the same keys, but documents[0] has {', '.join(found[0])} and "
                f"documents[{index}] has {', '.join(document)}."
            )
    return list(found[0])


def _with_labels(document: dict[str, Tensor], causal: bool) -> dict[str, Tensor]:
    labels = document.get("labels", document["input_ids"]).clone()
    if causal:
        labels[0] = _IGNORED
    return {**document, "labels": labels}


def _assign(lengths: list[int], max_seq_length: int) -> list[list[int]]:
    """Assign documents, longest first, each to the first row with enough space; return the documents of each row."""
    rows: list[list[int]] = []
    space: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        row = next((row for row, left in enumerate(space) if left >= length), len(rows))
        if row == len(rows):
            rows.append([])
            space.append(max_seq_length)
        rows[row].append(index)
        space[row] -= length
    return rows


def _loss_weights(document: Mapping[str, Tensor], weights: str) -> Tensor:
    """Return the loss weight of each label, or of each token if there are no labels."""
    labels = document.get("labels")
    counted = torch.ones(len(document["input_ids"])) if labels is None else (labels != _IGNORED).float()
    return counted / counted.sum().clamp(min=1) if weights == "document" else counted
