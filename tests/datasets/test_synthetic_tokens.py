"""Synthetic token sequences."""

from __future__ import annotations

import math

import pytest
import torch

from composer.datasets.synthetic_tokens import SyntheticTokenDataset

VOCAB = 11


def all_tokens(**more) -> torch.Tensor:
    data = SyntheticTokenDataset(total_dataset_size=400, sequence_length=64, vocab_size=VOCAB, **more)
    return torch.stack([data[i]["input_ids"] for i in range(400)])


def test_data_are_reproducible_and_leave_the_global_random_state() -> None:
    before = torch.get_rng_state()
    assert torch.equal(all_tokens(), all_tokens())
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(all_tokens(), all_tokens(seed=1))


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_entropy_is_that_of_the_next_token(noise) -> None:
    tokens = all_tokens(noise=noise)
    assert tokens.min() >= 0
    assert tokens.max() < VOCAB
    step = (tokens[:, 1:] - tokens[:, :-1]) % VOCAB
    shares = torch.bincount(step.flatten(), minlength=VOCAB) / step.numel()
    found = -sum(p * math.log(p) for p in shares.tolist() if p)
    data = SyntheticTokenDataset(total_dataset_size=1, sequence_length=2, vocab_size=VOCAB, noise=noise)
    assert found == pytest.approx(data.entropy, abs=0.02)
    assert shares[1].item() == pytest.approx(1 - noise + noise / VOCAB, abs=0.01)


def test_labels() -> None:
    data = SyntheticTokenDataset(total_dataset_size=3, sequence_length=5, vocab_size=VOCAB, num_classes=4)
    for i in range(3):
        sample = data[i]
        assert sample["labels"] == sample["input_ids"][0] % 4
        assert sample["attention_mask"].tolist() == [1] * 5
    language = SyntheticTokenDataset(total_dataset_size=3, sequence_length=5, vocab_size=VOCAB)[1]
    assert torch.equal(language["labels"], language["input_ids"])
    with pytest.raises(IndexError):
        data[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_length": 1}, "sequence_length must be at least 2"),
        ({"vocab_size": 1}, "vocab_size must be at least 2"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"noise": 1.5}, "noise must be between 0 and 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message) -> None:
    given = {"total_dataset_size": 4, "sequence_length": 8, "vocab_size": 5, **arguments}
    with pytest.raises(ValueError, match=message):
        SyntheticTokenDataset(**given)
