from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from composer.nn import factorize_conv2d, factorize_matrix
from composer.nn.low_rank import latent_size, split_matrix


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), rank=st.integers(1, 12), seed=st.integers(0, 99))
def test_split_is_the_best_there_is(rows, columns, rank, seed):
    """Eckart and Young: the squared error is that of the singular values left out."""
    rank = min(rank, rows, columns)
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    first, second = split_matrix(matrix, rank)
    assert first.shape == (rows, rank)
    assert second.shape == (rank, columns)
    left = torch.linalg.svdvals(matrix)[rank:].square().sum()
    torch.testing.assert_close((matrix - first @ second).square().sum(), left, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(first.norm(dim=0), second.norm(dim=1))


def test_split_of_nothing_is_finite():
    first, second = split_matrix(torch.zeros(4, 3), 2)
    assert torch.isfinite(first).all() and torch.isfinite(second).all()
    assert not (first @ second).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_split_keeps_the_dtype(dtype):
    assert {factor.dtype for factor in split_matrix(torch.randn(4, 3).to(dtype), 2)} == {dtype}


def test_matrix_of_low_rank_is_found_exactly():
    X, W, b = torch.randn(50, 8), torch.randn(8, 3) @ torch.randn(3, 6), torch.randn(6)
    solution = factorize_matrix(X, X @ W + b, W, bias=b, rank=3)
    assert solution.rank == 3
    assert solution.Wa.shape == (8, 3)
    assert solution.Wb.shape == (3, 6)
    torch.testing.assert_close(solution.Wa @ solution.Wb, W, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(solution.bias, b, rtol=1e-4, atol=1e-4)
    assert solution.nmse < 1e-8


@given(rank=st.integers(1, 5), seed=st.integers(0, 99))
def test_no_other_solution_is_better(rank, seed):
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -2, 8, dtype=torch.float64)
    X = torch.randn(60, 8, generator=generator, dtype=torch.float64) * scales
    W = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    Y = X @ W
    solution = factorize_matrix(X, Y, W, rank=rank)

    def error(first, second):
        found = X @ first @ second
        return ((Y - Y.mean(0)) - (found - found.mean(0))).square().mean().item()

    best = error(solution.Wa, solution.Wb)
    variance = (Y - Y.mean(0)).square().mean().item()
    assert solution.nmse == pytest.approx(best / variance, abs=1e-9)
    assert best <= error(*split_matrix(W, rank)) + 1e-12
    # A few rounds of alternating least squares from there find nothing better.
    Wa, Wb = solution.Wa, solution.Wb
    inputs, outputs = X - X.mean(0), Y - Y.mean(0)
    for _ in range(3):
        Wb = torch.linalg.lstsq(inputs @ Wa, outputs).solution
        Wa = torch.linalg.pinv(inputs) @ outputs @ torch.linalg.pinv(Wb)
        assert best <= error(Wa, Wb) + 1e-9


def test_what_the_data_leave_open_stays():
    X = torch.zeros(5, 4)
    X[:, :2] = torch.randn(5, 2)
    W = torch.randn(4, 3)
    solution = factorize_matrix(X, X @ W, W, rank=3)
    assert solution.Wb is None
    torch.testing.assert_close(solution.Wa, W, rtol=1e-4, atol=1e-4)
    solution = factorize_matrix(X[:1], X[:1] @ W, W, rank=2)
    assert torch.isfinite(solution.Wa).all()


def test_two_matrices_become_thinner_or_stay():
    X, Wa, Wb = torch.randn(40, 8), torch.randn(8, 4), torch.randn(4, 8)
    Y = X @ Wa @ Wb
    assert factorize_matrix(X, Y, Wa, Wb, rank=2).Wa.shape == (8, 2)
    stays = factorize_matrix(X, Y, Wa, Wb, rank=4)
    assert stays.Wa is Wa
    assert stays.rank == -1
    assert stays.nmse < 1e-9
    # A fraction is one of the inputs, and not more than the current rank.
    assert factorize_matrix(X, Y, Wa, Wb, rank=0.125).rank == 1
    assert factorize_matrix(X, Y, Wa @ Wb, rank=0.25).rank == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"padding": 1},
        {"padding": "same"},
        {"padding": (1, 2), "stride": (2, 1)},
        {"dilation": 2, "padding": "same", "padding_mode": "circular"},
    ],
)
def test_convolution_of_low_rank_is_found_exactly(arguments):
    X = torch.randn(4, 5, 9, 8)
    kernel = (torch.randn(6, 2) @ torch.randn(2, 45)).view(6, 5, 3, 3)
    bias = torch.randn(6)
    solution = factorize_conv2d(X, kernel, rank=2, biasA=bias, **arguments)
    plain = {name: value for name, value in arguments.items() if name != "padding_mode"}
    expected = F.conv2d(X, kernel, bias, **plain)
    found = F.conv2d(F.conv2d(X, solution.Wa, **plain), solution.Wb, solution.bias)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    thinner = factorize_conv2d(X, solution.Wa, solution.Wb, 1, biasB=solution.bias, **arguments)
    assert thinner.rank == 1
    assert 0 < thinner.nmse < 1
    both = factorize_conv2d(X, solution.Wa, solution.Wb, 1, torch.ones(2), torch.ones(6), **arguments)
    assert both.nmse == pytest.approx(thinner.nmse)


def test_wrong_arguments():
    X = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="do not match"):
        factorize_matrix(X, torch.zeros(3, 2), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="do not match"):
        factorize_matrix(X, torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="rank"):
        factorize_matrix(X, torch.zeros(3, 3), torch.zeros(4, 3), rank=0)
    with pytest.raises(ValueError, match="biasB"):
        factorize_conv2d(torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3), biasB=torch.zeros(1))
    with pytest.raises(NotImplementedError, match="groups"):
        factorize_conv2d(torch.zeros(1, 2, 3, 3), torch.zeros(2, 1, 3, 3), groups=2)
    with pytest.raises(ValueError, match="latent_features"):
        latent_size("latent_features", 0, 4, 4)
