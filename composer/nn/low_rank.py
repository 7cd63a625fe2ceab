"""Low-rank factorization: the best product of two small matrices in place of a large one.

    minimize |Y - (X Wa Wb + b)|^2            Wa: (in, rank),  Wb: (rank, out)

Papers: Izenman 1975, Reduced-rank regression for the multivariate linear model,
https://doi.org/10.1016/0047-259X(75)90042-1; Khodak et al. 2021, Initialization and Regularization of Factorized
Neural Layers, https://arxiv.org/abs/2105.01029
"""

# ruff: noqa: N803 - matrices have the names that callers use
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from composer._numbers import positive
from composer.precision import widest_dtype

__all__ = ["LowRankSolution", "factorize_conv2d", "factorize_matrix", "latent_size", "split_matrix"]


@dataclass
class LowRankSolution:
    """Two matrices, or convolution kernels, in place of one.

    Attributes:
        Wa: The first, (in, rank), or (rank, C_in, kH, kW) for a convolution.
        Wb: The second, (rank, out), or (C_out, rank, 1, 1); None if one matrix is not larger than two.
        bias: Added to the result, (out,).
        rank: The rank; -1 if nothing was split.
        nmse: Mean squared error over the variance of the result: 0 is exact, 1 no better than the mean.

    >>> LowRankSolution().rank
    -1
    """

    Wa: Tensor | None = None
    Wb: Tensor | None = None
    bias: Tensor | None = None
    rank: int = -1
    nmse: float = 0.0


def latent_size(argument: str, size: float, num_in: int, num_out: int) -> int:
    """Return the width between two layers that replace one, at least 1.

    Args:
        argument: Name of the argument, for the error message.
        size: The width; below 1, a fraction of the smaller of input and output width.
        num_in: Input width.
        num_out: Output width.

    Raises:
        ValueError: ``size`` is not positive.

    >>> latent_size("latent_features", 0.25, 64, 100), latent_size("latent_features", 8, 64, 100)
    (16, 8)
    """
    is_fraction = positive(argument, size) < 1
    return max(int(size * min(num_in, num_out) if is_fraction else size), 1)


@torch.no_grad()
def split_matrix(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Split a matrix into the best low-rank approximation, a product of two matrices, by truncated SVD.

    Each factor gets the square roots of the singular values, so that both learn at the same rate.

    Args:
        matrix: (in, out).
        rank: The rank, at most the smaller size.

    Returns:
        Two matrices, (in, rank) and (rank, out).

    >>> first, second = split_matrix(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), rank=1)
    >>> (first @ second).abs().round(decimals=4)
    tensor([[0., 0.],
            [0., 4.]])
    """
    work = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    # Eigenvectors on the smaller side cost a fraction of the SVD of a tall matrix.
    if work.shape[0] >= work.shape[1]:
        basis = torch.linalg.eigh(work.mT @ work).eigenvectors[:, -rank:]
        first, second = work @ basis, basis.mT
    else:
        basis = torch.linalg.eigh(work @ work.mT).eigenvectors[:, -rank:]
        first, second = basis, basis.mT @ work
    return _balanced(first, second, matrix.dtype)


@torch.no_grad()
def factorize_matrix(
    X: Tensor,
    Y: Tensor,
    Wa: Tensor,
    Wb: Tensor | None = None,
    bias: Tensor | None = None,
    rank: float = 0.25,
    n_iters: int = 3,
) -> LowRankSolution:
    """Find the two small matrices that best approximate a large one on given data.

        minimize |Y - (X Wa Wb + b)|^2            Wa: (in, rank),  Wb: (rank, out)

    The minimum has a closed form: the regression of Y on X, projected onto the principal directions of its predictions.
    Directions that the data do not determine are taken from the given matrices.

    Args:
        X: Inputs, (N, in).
        Y: Target outputs, (N, out).
        Wa: The large matrix, (in, out), or with ``Wb`` the first of two.
        Wb: The second, (k, out), if there are already two, whose rank is to be reduced.
        bias: The current bias added to ``X Wa Wb``, (out,).
        rank: The rank; below 1, a fraction of ``in``, but not more than the current rank.
        n_iters: Ignored; the solution is not iterative.

    Returns:
        The solution. It is one matrix if ``rank`` is not below ``in`` and ``out``; it is the given two matrices if
        ``rank`` is not below their rank.

    Raises:
        ValueError: Shapes do not match, or ``rank`` is not positive.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> W = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    >>> solution = factorize_matrix(X, X @ W, W, rank=1)
    >>> (solution.Wa @ solution.Wb).round(decimals=4)
    tensor([[1., 2., 3.],
            [2., 4., 6.]])

    Paper: https://doi.org/10.1016/0047-259X(75)90042-1 (Izenman 1975)
    """
    _check(X, Y, Wa, Wb)
    exact = widest_dtype(X.device)
    data, expected = X.to(exact), Y.to(exact)
    matrix = Wa.to(exact) if Wb is None else Wa.to(exact) @ Wb.to(exact)
    width = max(int(min(rank * X.shape[1], Wa.shape[1])) if positive("rank", rank) < 1 else int(rank), 1)
    if Wb is not None and width >= Wa.shape[1] and width < min(matrix.shape):
        kept = torch.zeros_like(expected[0]) if bias is None else bias.to(exact)
        return LowRankSolution(Wa, Wb, bias, -1, _error(expected, data @ matrix + kept))
    inputs, outputs = data - data.mean(0), expected - expected.mean(0)
    gram = inputs.mT @ inputs
    missed = inputs.mT @ (outputs - inputs @ matrix)
    matrix = matrix + torch.linalg.pinv(gram, hermitian=True) @ missed
    first, second = matrix, None
    if width < min(matrix.shape):
        # A small multiple of the identity lets the matrix decide where the data do not.
        gram.diagonal().add_(1e-9 * gram.trace() / len(gram) + torch.finfo(exact).tiny)
        basis = torch.linalg.eigh(matrix.mT @ gram @ matrix).eigenvectors[:, -width:]
        first, second = _balanced(matrix @ basis, basis.mT, exact)
    product = first if second is None else first @ second
    found = expected.mean(0) - data.mean(0) @ product
    return LowRankSolution(
        first.to(Wa.dtype),
        None if second is None else second.to(Wa.dtype),
        found.to(Wa.dtype),
        -1 if second is None else width,
        _error(expected, data @ product + found),
    )


@torch.no_grad()
def factorize_conv2d(
    X: Tensor,
    Wa: Tensor,
    Wb: Tensor | None = None,
    rank: float = 0.25,
    biasA: Tensor | None = None,
    biasB: Tensor | None = None,
    n_iters: int = 3,
    **conv2d_kwargs: Any,
) -> LowRankSolution:
    """Find a convolution with few output channels and a 1 x 1 convolution that best approximate one on given images.

    It applies :func:`factorize_matrix` to the patches of the images.

    Args:
        X: Images, (B, C_in, H, W).
        Wa: The kernel, (C_out, C_in, kH, kW), or with ``Wb`` the first of two.
        Wb: The second, (C_out, k, 1, 1), if there are already two, whose rank is to be reduced.
        rank: Channels in between; below 1, a fraction of the patch size, but not more than the current rank.
        biasA: Bias of the first.
        biasB: Bias of the second.
        n_iters: Ignored; the solution is not iterative.
        **conv2d_kwargs: ``stride``, ``padding``, ``dilation`` and ``padding_mode``, as for :class:`torch.nn.Conv2d`.

    Raises:
        NotImplementedError: ``groups`` is not 1.
        ValueError: ``biasB`` is given without ``Wb``.

    >>> solution = factorize_conv2d(torch.randn(2, 8, 6, 6), torch.randn(8, 8, 3, 3), rank=2, padding=1)
    >>> solution.Wa.shape, solution.Wb.shape
    (torch.Size([2, 8, 3, 3]), torch.Size([8, 2, 1, 1]))
    """
    if biasB is not None and Wb is None:
        raise ValueError("biasB belongs to a second kernel, but Wb is None; give the bias of a single one as biasA.")
    kernel = Wa.shape[1:]
    patches = _patches(X, (int(kernel[1]), int(kernel[2])), **conv2d_kwargs)
    first = Wa.flatten(1).mT
    second = None if Wb is None else Wb.flatten(1).mT
    bias = biasA
    if second is not None and biasA is not None:
        bias = biasA @ second
    if biasB is not None:
        bias = biasB if bias is None else bias + biasB
    outputs = patches @ (first if second is None else first @ second)
    outputs = outputs if bias is None else outputs + bias
    solution = factorize_matrix(patches, outputs, first, second, bias, rank, n_iters)
    if solution.Wa is not None:
        solution.Wa = solution.Wa.mT.unflatten(1, kernel)
    if solution.Wb is not None:
        solution.Wb = solution.Wb.mT[..., None, None]
    return solution


def _patches(
    images: Tensor,
    kernel_size: tuple[int, int],
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Return the input patches of a convolution at each position, (positions, C * kH * kW)."""
    if groups != 1:
        raise NotImplementedError(f"groups must be 1, but got {groups}: grouped convolutions cannot be factorized.")
    steps = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(steps, kernel_size, strict=True)]
        sides = [total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2]
    else:
        pair = (0, 0) if padding == "valid" else padding if isinstance(padding, tuple) else (padding, padding)
        sides = [pair[1], pair[1], pair[0], pair[0]]
    images = F.pad(images, sides, mode="constant" if padding_mode == "zeros" else padding_mode)
    return F.unfold(images, kernel_size, dilation=dilation, stride=stride).mT.flatten(0, 1)


def _balanced(first: Tensor, second: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale both factors to the same norm in each latent direction."""
    ratio = (second.norm(dim=1) / first.norm(dim=0).clamp_min(torch.finfo(first.dtype).tiny)).sqrt()
    ratio = ratio.clamp(1e-6, 1e6)  # directions without weight stay finite
    return (first * ratio).to(dtype).contiguous(), (second / ratio[:, None]).to(dtype).contiguous()


def _error(expected: Tensor, found: Tensor) -> float:
    """Return the mean squared error relative to the variance."""
    variance = (expected - expected.mean(0)).square().mean().clamp_min(torch.finfo(expected.dtype).tiny)
    return ((expected - found).square().mean() / variance).item()


def _check(X: Tensor, Y: Tensor, Wa: Tensor, Wb: Tensor | None) -> None:
    num_out = (Wa if Wb is None else Wb).shape[-1]
    shapes = [tuple(X.shape), tuple(Y.shape), tuple(Wa.shape), None if Wb is None else tuple(Wb.shape)]
    if X.ndim != 2 or Y.shape != (X.shape[0], num_out) or Wa.shape[0] != X.shape[1]:
        raise ValueError(f"X (N, in), Y (N, out), Wa (in, k) and Wb (k, out) do not match: their shapes are {shapes}.")
    if Wb is not None and Wb.shape[0] != Wa.shape[1]:
        raise ValueError(f"Wa (in, k) and Wb (k, out) do not match: the shapes of X, Y, Wa and Wb are {shapes}.")
