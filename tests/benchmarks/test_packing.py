"""Packing and padding are compared on the same texts, with the same gradient."""

from __future__ import annotations

import pytest
import torch

from benchmarks import packing

pytest.importorskip("transformers")


def test_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "STEPS", 1)
    monkeypatch.setattr(packing, "NUMBERS", (8,))
    report = packing.measure(rounds=2)
    assert [name for name, *_ in report.rows] == list(packing.CONTENDERS)
    assert report.rows[0][3] == 1.0
    assert report.rows[2][4] < report.rows[0][4]  # fewer places without a token
    assert [goal.limit for goal in report.goals] == [0.541, 1.5]
    assert all(min(values) > 0 and len(values) == 2 for values in report.samples.values())


def test_packed_and_padded_batches_have_the_same_gradient() -> None:
    texts = packing.documents()[:8]
    gradients: list[list[torch.Tensor]] = []
    for name in (packing.PADDING, packing.PACKING):
        training = packing.Training(name, texts)
        model = training._trainer.state.model.double()
        batch = packing.CONTENDERS[name](texts)
        model.loss(model(batch), batch).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for packed, padded in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, padded, rtol=0, atol=1e-9)


def test_similar_lengths_are_together_within_a_pool() -> None:
    texts = [torch.zeros(length, dtype=torch.long) for length in range(packing.POOL * packing.BATCH + 2, 0, -1)]
    lengths = [len(text) for text in packing.by_length(texts)]
    assert lengths[:-2] == sorted(lengths[:-2])
    assert lengths[-2:] == [1, 2]
