"""Whether the loss of a batch is a weighted mean of those of its microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.verification._judge_split import is_weighted_mean

N, D = 6, 20


def recorded(loss: Callable[[Tensor], Tensor]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """What the first step records of a loss of N per-sample values, with the full batch and with single samples."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight = torch.randn(D, generator=generator, dtype=torch.float64, requires_grad=True)

    def gradient(rows: Tensor) -> tuple[Tensor, float]:
        value = loss((rows @ weight) ** 2 + 0.1)
        return torch.autograd.grad(value, weight)[0], value.item()

    total, value = gradient(matrix)
    singles = [gradient(matrix[i : i + 1]) for i in range(N)]
    added = torch.stack([grad / N for grad, _ in singles]).cumsum(0)
    return (
        {"increments": [total], "losses": [value]},
        {"increments": list(added), "losses": [loss for _, loss in singles]},
    )


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: x.mean(), True),
        (lambda x: (x * torch.linspace(1, 2, 6)[: len(x)]).sum() / torch.linspace(1, 2, 6)[: len(x)].sum(), True),
        (lambda x: x.mean().sqrt(), False),
        (lambda x: x.topk(max(len(x) // 2, 1)).values.mean(), False),
        (lambda x: torch.logsumexp(x, 0), False),
        (lambda x: x.mean() + x.var(correction=0), False),
    ],
    ids=["mean", "weighted", "root", "hardest", "logsumexp", "variance"],
)
def test_kinds_of_losses(loss, expected) -> None:
    first, second = recorded(loss)
    ratio = sum(second["losses"]) / N / first["losses"][0]
    assert is_weighted_mean(first, second, ratio) == expected
