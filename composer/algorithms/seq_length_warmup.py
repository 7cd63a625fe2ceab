"""Sequence length warm-up: start training on short sequences, and increase their length.

    length(t) = min + step * floor(t / duration * n),    n = ceil((max - min) / step),    max from t = duration on

Short sequences cost less and stabilize the start of training, which allows larger learning rates and batches.

Paper: The Stability-Efficiency Dilemma, Li et al. 2022, https://arxiv.org/abs/2108.06084
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import trees
from composer._numbers import in_unit_interval, whole_number
from composer.algorithms._sequences import fold_sequences, sequence_size, square_mask_test
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SeqLengthWarmup", "set_batch_sequence_length"]


def set_batch_sequence_length(
    batch: Any,
    curr_seq_len: int,
    truncate: bool = True,
    preserve_end_of_sequence: bool = False,
) -> Any:
    """Shorten the sequences of a batch.

    Args:
        batch: A mapping, or any nested collection, of sequence tensors, (B, S, ...). Square attention masks,
            (..., S, S), are cut in both dimensions; a floating-point (B, S, S) is one if its key contains "mask" or
            "bias", and features otherwise. Other tensors, such as sequence labels (B,), are unchanged.
        curr_seq_len: L, the new length in tokens; if it is S or more, the batch is returned unchanged.
        truncate: Whether to drop the tokens after the first L. Otherwise they become additional sequences: all tokens,
            read row by row, are written into rows of L, and a remainder of less than L is dropped.
        preserve_end_of_sequence: Whether each cut sequence keeps its last token, in the last position; requires
            ``"attention_mask"`` in the batch, (B, S), which marks padding. Only with ``truncate``.

    Returns:
        A batch of the same type; the input is not modified.

    Raises:
        ValueError: The length is not positive, there is no sequence or a required attention mask is missing, or,
            without ``truncate``, a tensor is not aligned with the tokens or is a square attention mask.

    >>> batch = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    >>> set_batch_sequence_length(batch, 2)
    {'input_ids': tensor([[5, 6]])}
    >>> set_batch_sequence_length(batch, 2, truncate=False)
    {'input_ids': tensor([[5, 6],
            [7, 8]])}

    Paper: https://arxiv.org/abs/2108.06084 (Li et al. 2022)
    """
    curr_seq_len = whole_number("curr_seq_len", curr_seq_len, minimum=1)
    size = sequence_size(batch)
    if curr_seq_len >= size[1]:
        return batch
    if not truncate:
        return fold_sequences(batch, curr_seq_len)
    cut = partial(_cut, size, curr_seq_len, square_mask_test(batch, size))
    if not preserve_end_of_sequence:
        return trees.map_tensors(cut, batch)
    rows, old, new = _last_token_positions(batch, size, curr_seq_len)

    def cut_before_end(tensor: Tensor) -> Tensor:
        short = cut(tensor)
        if tensor.shape == size:
            short.scatter_(1, new, tensor.gather(1, old))
        elif tensor.shape[:2] == size and short.shape[2:] == tensor.shape[2:]:
            short[rows, new[:, 0]] = tensor[rows, old[:, 0]]
        return short

    return trees.map_tensors(cut_before_end, batch)


class SeqLengthWarmup(Algorithm):
    """Applies :func:`set_batch_sequence_length` to each training batch, on a schedule.

    The length grows from ``min_seq_length`` in equal steps of time and of ``step_size`` tokens, reaches
    ``max_seq_length`` at the fraction ``duration`` of the run, and stays there: longer sequences are always cut to it.
    ``max_duration`` may be in any unit; in epochs the length also grows within them.

    Peak memory is reached only at full length: test the full length once before a long run.

    Logs ``seq_length_warmup/curr_seq_len`` (tokens) and ``seq_length_warmup/curr_bs`` (sequences).

    When to use it:
        For language models that are unstable at the start: short sequences allow larger learning rates and batches.

    When not to:
        If labels belong to entire sequences and cutting would invalidate them. A compiled model is compiled for any
        length at once, and its code may be slower than for a constant one.

    How to choose:
        ``min_seq_length`` 8 to 64, ``duration`` 0.3. ``step_size`` a multiple of 8. ``truncate=False`` keeps the number
        of tokens in a batch.

    Cost:
        A copy of the kept tokens. With ``truncate`` early steps cost less; without it, only attention does.

    Args:
        duration: Fraction of the run in which the length grows, from 0 to 1.
        min_seq_length: Initial length in tokens.
        max_seq_length: Final length in tokens.
        step_size: Number of tokens by which the length grows at a time; a multiple of 8 suits tensor cores.
        truncate: Whether to drop tokens rather than make additional sequences of them. The latter keeps the number of
            tokens in a batch, and so its cost.
        preserve_end_of_sequence: Whether a cut sequence keeps its last token.

    Raises:
        ValueError: An argument is out of range.

    >>> SeqLengthWarmup(duration=0.5, min_seq_length=8, max_seq_length=32).length_at(0.25)
    16

    Paper: https://arxiv.org/abs/2108.06084 (Li et al. 2022)
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        changes_shapes=True,
        dynamic_dims=(1,),
        sharding=Sharding.SAFE,
        sharding_reason="All ranks cut to the same length.",
        neutral={"duration": 0.0, "max_seq_length": 2**30, "truncate": True, "preserve_end_of_sequence": False},
    )

    def __init__(
        self,
        duration: float = 0.3,
        min_seq_length: int = 8,
        max_seq_length: int = 1024,
        step_size: int = 8,
        truncate: bool = True,
        preserve_end_of_sequence: bool = False,
    ) -> None:
        self.duration = in_unit_interval("duration", duration)
        self.min_seq_length = whole_number("min_seq_length", min_seq_length, minimum=1)
        self.max_seq_length = whole_number("max_seq_length", max_seq_length, minimum=None)
        if self.max_seq_length < self.min_seq_length:
            raise ValueError(
                f"max_seq_length must not be less than min_seq_length, but got {max_seq_length} and {min_seq_length}."
            )
        self.step_size = whole_number("step_size", step_size, minimum=1)
        self.truncate = truncate
        self.preserve_end_of_sequence = preserve_end_of_sequence

    def length_at(self, elapsed: float) -> int:
        """Return the length in tokens.

        Args:
            elapsed: Fraction of the run completed, from 0 to 1.

        >>> SeqLengthWarmup(duration=0.0).length_at(0.0)
        1024
        """
        if elapsed >= self.duration:
            return self.max_seq_length  # also if the warm-up has no duration
        steps = math.ceil((self.max_seq_length - self.min_seq_length) / self.step_size)
        # A fraction such as 3 * (1 / 3) of the duration must not miss its step by rounding.
        done = math.floor(elapsed / self.duration * steps + 1e-9)
        return min(self.min_seq_length + self.step_size * done, self.max_seq_length)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Cut the batch and log its size."""
        length = self.length_at(state.progress("dur"))
        state.batch = set_batch_sequence_length(state.batch, length, self.truncate, self.preserve_end_of_sequence)
        rows, length = sequence_size(state.batch)
        logger.log_metrics({"seq_length_warmup/curr_seq_len": length, "seq_length_warmup/curr_bs": rows})


def _cut(size: tuple[int, int], length: int, is_square_mask: Callable[[Tensor], bool], tensor: Tensor) -> Tensor:
    """Keep the first tokens of a tensor aligned with the tokens, in contiguous memory."""
    if is_square_mask(tensor):
        return tensor[..., :length, :length].contiguous()
    if tensor.shape[:2] == size:
        return torch.narrow_copy(tensor, 1, 0, length)  # half the time of slicing and contiguous()
    return tensor


def _last_token_positions(batch: Any, size: tuple[int, int], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows (B,), and the last token positions before and after the cut (B, 1); padding may be on either side."""
    mask = cast("Mapping[str, Any]", batch).get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.shape != size:
        raise ValueError(
            f"preserve_end_of_sequence=True requires 'attention_mask' of shape {size} in the batch, to find the ends "
            f"of sequences."
        )
    positions = torch.arange(size[1], device=mask.device)
    old = torch.mul(mask, positions).amax(1, keepdim=True).long()
    return torch.arange(size[0], device=mask.device), old, old.clamp(max=length - 1)
