"""Random values from Beta and Dirichlet distributions, sampled on the host (no device synchronization)."""

from __future__ import annotations

import random

import torch
from torch import Tensor

__all__ = ["sample_beta", "sample_dirichlet"]


def sample_beta(alpha: float) -> float:
    """Sample from Beta(alpha, alpha); 0 if ``alpha`` is 0.

    Seeded from torch's CPU generator, so that it is reproducible and resumes. ``torch.distributions`` would take ten
    times as long.

    >>> 0.0 <= sample_beta(0.2) <= 1.0
    True
    """
    if alpha == 0:
        return 0.0
    # A CPU tensor: reading it does not synchronize.
    seed = int(torch.randint(2**62, ()))
    return random.Random(seed).betavariate(alpha, alpha)


def sample_dirichlet(alpha: float, size: int, number: int) -> Tensor:
    """Sample from the Dirichlet distribution of ``size`` parameters all equal to ``alpha``; return (number, size).

    >>> sample_dirichlet(1.0, 3, 2).sum(1)
    tensor([1., 1.])
    """
    concentration = torch.full((number, size), float(alpha))
    return torch.distributions.Dirichlet(concentration, validate_args=False).sample()
