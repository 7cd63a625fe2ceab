"""Seeds and random state, under the name that scripts import; see :mod:`composer.rng`."""

from __future__ import annotations

from composer.rng import (
    MAX_SEED,
    configure_deterministic_mode,
    get_random_seed,
    get_rng_state,
    load_rng_state,
    seed_all,
    seed_context,
)

__all__ = [
    "MAX_SEED",
    "configure_deterministic_mode",
    "get_random_seed",
    "get_rng_state",
    "load_rng_state",
    "seed_all",
    "seed_context",
]
