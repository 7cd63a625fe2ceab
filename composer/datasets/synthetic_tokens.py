"""Synthetic token sequences, for language modeling and text classification."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from composer._numbers import in_unit_interval, whole_number
from composer.core.random_order import mix_seed

__all__ = ["SyntheticTokenDataset"]


class SyntheticTokenDataset(Dataset[dict[str, Tensor]]):
    """Sequences of token ids in which each token determines the next one, up to noise.

    Token t is followed by t + 1, modulo the vocabulary size, with probability 1 - noise, and by a uniformly random
    token otherwise. A language model can thus learn the data, and its loss cannot fall below :attr:`entropy`. Sequence
    i is generated on access from the seed and i; the global random state is not used, and nothing is kept in memory.

    Args:
        total_dataset_size: Number of sequences.
        sequence_length: Number of tokens in each, at least 2.
        vocab_size: Number of different tokens, at least 2.
        num_classes: Number of classes, for labels (): the first token modulo this number. None for the labels of
            language modeling, (sequence_length,): the tokens themselves.
        noise: Fraction of random tokens, from 0 (none) to 1 (all: only classes can be learned).
        seed: Random seed.

    Raises:
        ValueError: An argument is out of range.

    >>> data = SyntheticTokenDataset(total_dataset_size=100, sequence_length=6, vocab_size=50, noise=0.0)
    >>> data[0]["input_ids"]
    tensor([43, 44, 45, 46, 47, 48])
    >>> sorted(data[0]), data.entropy
    (['attention_mask', 'input_ids', 'labels'], 0.0)
    """

    def __init__(
        self,
        *,
        total_dataset_size: int,
        sequence_length: int,
        vocab_size: int,
        num_classes: int | None = None,
        noise: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.total_dataset_size = whole_number("total_dataset_size", total_dataset_size, minimum=1)
        self.max_seq_len = _at_least_two("sequence_length", sequence_length)
        self.vocab_size = _at_least_two("vocab_size", vocab_size)
        self.num_classes = None if num_classes is None else _at_least_two("num_classes", num_classes)
        self.noise = in_unit_interval("noise", noise)
        self.seed = whole_number("seed", seed, minimum=None)

    @property
    def entropy(self) -> float:
        """Lower bound of the mean next-token loss in nats: the entropy of a token given the one before."""
        other = self.noise / self.vocab_size
        likely = 1 - self.noise + other
        rest = (self.vocab_size - 1) * other
        terms = (-mass * math.log(each) for mass, each in ((likely, likely), (rest, other)) if 0 < each < 1)
        return sum(terms, 0.0)

    def __len__(self) -> int:
        return self.total_dataset_size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, int64 of shape (sequence_length,), and ``labels``."""
        size = self.total_dataset_size
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} samples.")
        generator = torch.Generator().manual_seed(mix_seed(self.seed, index % size))
        sampled = torch.randint(self.vocab_size, (self.max_seq_len,), generator=generator)
        is_random = torch.rand(self.max_seq_len, generator=generator) < self.noise
        is_random[0] = True
        positions = torch.arange(self.max_seq_len)
        # Each position counts up from the last random token at or before it.
        last = torch.where(is_random, positions, 0).cummax(0).values
        tokens = (sampled[last] + positions - last) % self.vocab_size
        labels = tokens.clone() if self.num_classes is None else tokens[0] % self.num_classes
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def _at_least_two(argument: str, value: int) -> int:
    number = whole_number(argument, value, minimum=None)
    if number < 2:
        raise ValueError(f"{argument} must be at least 2, but got {value!r}.")
    return number
