"""What rows of batches contain."""

from __future__ import annotations

import torch

from composer.trainer.row_contents import describe_rows


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(f"t{one}" for one in ids)


def test_token_rows_show_lengths_labels_and_text() -> None:
    batch = {
        "input_ids": torch.tensor([[5, 6, 7, 0], [8, 8, 8, 8]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "labels": torch.tensor([[6, 7, -100, -100], [8, 8, 8, -100]]),
    }
    first, second = describe_rows(batch, Tokenizer())
    assert (first.num_tokens, first.num_labels, first.text) == (3, 2, "t5 t6 t7")
    assert first.lines()[-2:] == ["3 tokens, 2 with a label", "text: 't5 t6 t7'"]
    assert (first.constant, second.constant) == ((), ("input_ids",))  # a mask of ones is not suspicious


def test_long_text_is_shortened() -> None:
    (row,) = describe_rows({"input_ids": torch.arange(100).view(1, -1)}, Tokenizer())
    assert len(row.text) == 83
    assert row.text.endswith("...")


def test_nested_fields_are_named_by_their_path() -> None:
    batch = {"image": {"pixels": torch.zeros(2, 3, 4, dtype=torch.uint8)}, "name": ["a", "b"], "y": torch.ones(2)}
    _, row = describe_rows(batch)
    assert row.lines() == [
        "image.pixels: uint8 (3, 4), min 0, max 0, mean 0",
        "name: str 'b'",
        "y: float32 (), min 1, max 1, mean 1",
    ]


def test_invalid_values_are_counted() -> None:
    x = torch.tensor([[1.0, float("nan"), float("inf")], [float("nan")] * 3])
    first, second = describe_rows((x, torch.tensor([0, 1])))
    assert (first.num_non_finite, second.num_non_finite) == (2, 3)
    assert first.lines()[0] == "0: float32 (3,), min 1, max 1, mean 1, 2 not finite"
    assert second.lines()[0] == "0: float32 (3,), 3 not finite"
