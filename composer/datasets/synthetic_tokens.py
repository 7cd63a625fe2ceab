"""Token sequences made of random numbers, for models of language and of texts' classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

from composer._text import in_unit_interval, positive
from composer.core.random_order import mix_seed

__all__ = ["SyntheticTokenDataset"]


class SyntheticTokenDataset(Dataset[dict[str, Tensor]]):
    """Sequences of token ids, in which each token but for the noise follows from the one before.

    Token t is followed by t + 1, modulo the vocabulary, with probability 1 - noise, and else by any token. So a model
    of language can learn the data, and its loss cannot fall below :attr:`entropy`. Sequence i is made from the seed and
    i when it is asked for; no other generator is touched, and nothing is kept in memory.

    Args:
        total_dataset_size: Number of sequences.
        sequence_length: Number of tokens in each, at least 2.
        vocab_size: Number of different tokens, at least 2.
        num_classes: Number of classes, for labels (): the first token modulo this number. None for the labels of a
            model of language, (sequence_length,): the tokens themselves.
        noise: Share of tokens that are random, from 0 (none) to 1 (all, so that there is nothing to learn but classes).
        seed: Of the numbers.

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
        self.total_dataset_size = positive("total_dataset_size", total_dataset_size)
        self.max_seq_len = _at_least_two("sequence_length", sequence_length)
        self.vocab_size = _at_least_two("vocab_size", vocab_size)
        self.num_classes = None if num_classes is None else _at_least_two("num_classes", num_classes)
        self.noise = in_unit_interval("noise", noise)
        self.seed = seed

    @property
    def entropy(self) -> float:
        """The least mean loss of a prediction of the next token, in nats: of one in the middle of a sequence."""
        other = self.noise / self.vocab_size
        likely = 1 - self.noise + other
        rest = (self.vocab_size - 1) * other
        terms = (-share * math.log(each) for share, each in ((likely, likely), (rest, other)) if 0 < each < 1)
        return sum(terms, 0.0)

    def __len__(self) -> int:
        return self.total_dataset_size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, (sequence_length,) of int64, and ``labels``."""
        size = self.total_dataset_size
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} samples.")
        generator = torch.Generator().manual_seed(mix_seed(self.seed, index % size))
        drawn = torch.randint(self.vocab_size, (self.max_seq_len,), generator=generator)
        begins = torch.rand(self.max_seq_len, generator=generator) < self.noise
        begins[0] = True
        places = torch.arange(self.max_seq_len)
        # From each place back to the last random token, and from there by ones.
        last = torch.where(begins, places, 0).cummax(0).values
        tokens = (drawn[last] + places - last) % self.vocab_size
        labels = tokens.clone() if self.num_classes is None else tokens[0] % self.num_classes
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def _at_least_two(argument: str, value: int) -> int:
    if value < 2:
        raise ValueError(f"{argument} must be at least 2, but got {value!r}.")
    return value
