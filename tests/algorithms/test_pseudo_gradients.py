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
    st.sampled_from([("int8", 127), ("int4", 7)]),
)
def test_integers_err_by_half_a_step(values: list[float], exponent: int, format: tuple[str, int]) -> None:
    compression, steps = format
    rows = torch.zeros(2, 512)
    rows[0, : len(values)] = torch.tensor(values)
    rows[1, 200 : 200 + len(values)] = torch.tensor(values) * 2.0**exponent
    found = decode(encode(rows, compression), compression)
    largest = rows.unflatten(1, (2, 256)).abs().amax(2, keepdim=True)
    bound = (largest / steps * 0.5 * (1 + 1e-4)).expand(2, 2, 256).flatten(1)
    finite = bound.isfinite() & (bound > 1e-36)  # below, the scale itself is subnormal
    assert ((found - rows).abs() <= bound)[finite].all()


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=256, max_size=256))
def test_bf16_rounds_to_nearest(values: list[float]) -> None:
    rows = torch.tensor([values])
    assert torch.equal(decode(encode(rows, "bf16"), "bf16"), rows.bfloat16().float())


def test_int4_packs_two_values_into_a_byte() -> None:
    rows = torch.arange(-7.0, 8.0).repeat(2, 18)[:, :256]
    rows[1] = rows[1].flip(0) * 0.5
    coded = encode(rows, "int4")
    assert coded.shape == (2, 128 + 4)
    assert torch.equal(decode(coded, "int4"), rows)
    assert coded[0, 0] == (-7 & 15) | (-6 & 15) << 4


@pytest.mark.parametrize(("compression", "largest"), [("int8", 127), ("int4", 7)])
def test_subnormal_scales_do_not_overflow(compression: str, largest: int) -> None:
    # The smallest number times 1.43 * largest, whose scale is the smallest number and not 1.43 times that.
    rows = torch.full((1, 256), 1.43 * largest * 2.0**-149)
    rows[0, 1::2] *= -1
    found = decode(encode(rows, compression), compression)
    assert torch.equal(found.sign(), rows.sign())
    assert (found.abs() <= rows.abs()).all()


@pytest.mark.parametrize("compression", ["int8", "int4"])
def test_values_that_are_not_finite_are_not_hidden(compression: str) -> None:
    rows = torch.ones(1, 512)
    rows[0, 3] = torch.inf
    found = decode(encode(rows, compression), compression)
    assert found[0, :256].isnan().all()
    assert torch.equal(found[0, 256:], rows[0, 256:])


def test_bf16_keeps_infinity() -> None:
    rows = torch.ones(1, 512)
    rows[0, 3] = torch.inf
    assert decode(encode(rows, "bf16"), "bf16")[0, 3] == torch.inf


@pytest.mark.parametrize("compression", ["int8", "int4"])
def test_zeros_stay_zeros(compression: str) -> None:
    assert torch.equal(decode(encode(torch.zeros(3, 256), compression), compression), torch.zeros(3, 256))


def tensors_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    shapes = [(300, 7), (), (5,), (0,), (1024,)]
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    return [*found, torch.randn(6, generator=generator, dtype=torch.float64), torch.full((4,), 0.1)]


def averaged(compression: str | None) -> list[Tensor]:
    found = tensors_of(dist.get_global_rank())
    average_over_replicas(found, replicas_of(), compression)
    return found


@pytest.mark.parametrize(("compression", "tolerance"), [(None, 1e-6), ("bf16", 2e-2), ("int8", 4e-2), ("int4", 0.5)])
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
