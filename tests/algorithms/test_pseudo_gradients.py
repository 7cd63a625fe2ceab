"""Averages over replicas, exact and compressed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from composer import dist
from composer.algorithms._pseudo_gradients import average_over_replicas, decode, encode, replicas_of
from tests.ranks import Ranks


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.integers(-20, 20),
)
def test_int8_errs_by_half_a_step(values: list[float], exponent: int) -> None:
    rows = torch.zeros(2, 512)
    rows[0, : len(values)] = torch.tensor(values)
    rows[1, 200 : 200 + len(values)] = torch.tensor(values) * 2.0**exponent
    found = decode(encode(rows, "int8"), "int8")
    largest = rows.unflatten(1, (2, 256)).abs().amax(2, keepdim=True)
    bound = (largest / 127 * 0.5 * (1 + 1e-4)).expand(2, 2, 256).flatten(1)
    finite = bound.isfinite() & (bound > 1e-36)  # below, the scale itself is subnormal
    assert ((found - rows).abs() <= bound)[finite].all()


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=256, max_size=256))
def test_bf16_rounds_to_nearest(values: list[float]) -> None:
    rows = torch.tensor([values])
    assert torch.equal(decode(encode(rows, "bf16"), "bf16"), rows.bfloat16().float())


def test_values_that_are_not_finite_are_not_hidden() -> None:
    rows = torch.ones(1, 512)
    rows[0, 3] = torch.inf
    found = decode(encode(rows, "int8"), "int8")
    assert found[0, :256].isnan().all()
    assert torch.equal(found[0, 256:], rows[0, 256:])
    assert decode(encode(rows, "bf16"), "bf16")[0, 3] == torch.inf


def test_zeros_stay_zeros() -> None:
    assert torch.equal(decode(encode(torch.zeros(3, 256), "int8"), "int8"), torch.zeros(3, 256))


def tensors_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    shapes = [(300, 7), (), (5,), (0,), (1024,)]
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    return [*found, torch.randn(6, generator=generator, dtype=torch.float64), torch.full((4,), 0.1)]


def averaged(compression: str | None) -> list[Tensor]:
    found = tensors_of(dist.get_global_rank())
    average_over_replicas(found, replicas_of(), compression)
    return found


@pytest.mark.parametrize(("compression", "tolerance"), [(None, 1e-6), ("bf16", 2e-2), ("int8", 4e-2)])
def test_average_is_equal_on_all_ranks(four_ranks: Ranks, compression: str | None, tolerance: float) -> None:
    first, *others = four_ranks.run(averaged, compression)
    for other in others:
        assert all(map(torch.equal, first, other))
    for found, values in zip(first, zip(*map(tensors_of, range(4)), strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(list(values)).mean(0), rtol=0, atol=tolerance)
    if compression is not None:
        assert not torch.equal(first[0], torch.stack([tensors_of(rank)[0] for rank in range(4)]).mean(0))


def test_complex_tensors(two_ranks: Ranks) -> None:
    for found in two_ranks.run(of_complex):
        assert found.tolist() == [0.5 + 0.5j]


def of_complex() -> Tensor:
    value = torch.full((1,), 1j if dist.get_global_rank() else 1.0, dtype=torch.complex64)
    average_over_replicas([value], replicas_of(), None)
    return value
