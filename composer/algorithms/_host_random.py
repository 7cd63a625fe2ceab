"""Random numbers that methods draw on the host."""

from __future__ import annotations

import random

import torch
from torch import Tensor

__all__ = ["draw_beta", "draw_dirichlet"]


def draw_beta(alpha: float) -> float:
    """Draw from Beta(alpha, alpha); for ``alpha`` 0 this is 0.

    Seeded from torch's generator of the host, so that it repeats under a seed and resumes. ``torch.distributions``
    would take ten times as long.

    >>> 0.0 <= draw_beta(0.2) <= 1.0
    True
    """
    if alpha == 0:
        return 0.0
    # A tensor of the host: reading it waits for no device.
    seed = int(torch.randint(2**62, ()))
    return random.Random(seed).betavariate(alpha, alpha)


def draw_dirichlet(alpha: float, size: int, number: int) -> Tensor:
    """Draw from the Dirichlet distribution of ``size`` parameters that are all ``alpha``; return (number, size).

    >>> draw_dirichlet(1.0, 3, 2).sum(1)
    tensor([1., 1.])
    """
    concentration = torch.full((number, size), float(alpha))
    return torch.distributions.Dirichlet(concentration, validate_args=False).sample()
