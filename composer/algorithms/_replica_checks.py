"""Checks of replicas that train apart: a round starts from equal weights, and averages are of weights they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from torch import Tensor

from composer import dist
from composer.core.time import Time, TimeUnit
from composer.dist.same_on_all_ranks import disagreements, have_same_digest
from composer.dist.tensor_digest import tensor_digest

__all__ = ["check_averages", "check_equal"]

_NEVER: Final = {
    "SWA": "loads its average into the model, and the next round would mix that with the weights from before",
    "ScheduleFree": "would end with the average of each replica's own steps, which differ between ranks",
}
_REMEDY: Final = {
    "SWA": "Use EMA(update_interval='{0}', ema_start='{0}', half_life='{1}') instead of SWA.",
    "ScheduleFree": "Use AdamW as the optimizer, without ScheduleFree.",
}


def check_averages(method: str, sync_every: Time, algorithms: Iterable[Any]) -> None:
    """Raise if an algorithm would average the weights of single replicas, or replace the shared ones.

    Args:
        method: Name of the algorithm that synchronizes the replicas.
        sync_every: Length of its rounds.
        algorithms: All algorithms of the run.

    Raises:
        ValueError: An algorithm would.
    """
    for algorithm in algorithms:
        names = [cls.__name__ for cls in type(algorithm).__mro__]
        if "EMA" in names:
            _check_ema(method, sync_every, algorithm)
        elif "PostHocEMA" in names:
            _check_post_hoc_ema(method, sync_every, algorithm)
        for name in _NEVER.keys() & names:
            remedy = _REMEDY[name].format(sync_every, 10 * sync_every)
            raise ValueError(f"{method} does not work with {name} on several ranks: {name} {_NEVER[name]}. {remedy}")


def check_equal(method: str, position: Mapping[str, Any], synchronized: Mapping[str, Tensor]) -> None:
    """Raise on all ranks if these would continue from different weights; all ranks must call this.

    It computes digests on the device, and sends two numbers unless these differ.

    Args:
        method: Name of the algorithm that synchronizes the replicas.
        position: The position in the round by name.
        synchronized: The synchronized weights by name.

    Raises:
        ValueError: They differ.

    >>> check_equal("DiLoCo", {"local_steps": 0}, {"weight": torch.ones(2)})
    """
    own = {**position, **{name: int(tensor_digest(value)) for name, value in synchronized.items()}}
    if have_same_digest(own):
        return
    found = disagreements(dist.all_gather_object(own))
    for name in found:
        if name in position:
            raise ValueError(
                f"{method} is not at the same point of its round on all ranks: {name} has {found[name]}. Load the same "
                f"checkpoint on all ranks."
            )
        raise ValueError(
            f"The weights differ between ranks in {name!r} as training starts, but {method} averages differences from "
            f"weights that all ranks share. Load the same weights on all ranks, or change them before the Trainer is "
            f"created, which sends those of rank 0 to all."
        )


def _check_ema(method: str, sync_every: Time, ema: Any) -> None:
    """Raise if an average would be updated while the weights of the replicas differ."""
    if ema.half_life is None:
        length = f"half_life=None, smoothing={ema.smoothing}"
    else:
        is_same_unit = ema.half_life.unit is sync_every.unit
        length = f"half_life='{ema.half_life if is_same_unit else 10 * sync_every}'"
    for name in ("update_interval", "ema_start"):
        time = getattr(ema, name)
        if not _is_multiple(time, sync_every):
            raise ValueError(
                f"{name}={time} of EMA would average the weights of single replicas. {method} synchronizes them every "
                f"{sync_every}; use a multiple of it for update_interval and ema_start, such as EMA({length}, "
                f"update_interval='{sync_every}', ema_start='{sync_every}')."
            )


def _check_post_hoc_ema(method: str, sync_every: Time, ema: Any) -> None:
    if _is_multiple(ema.update_interval, sync_every):
        return
    in_batches = sync_every.unit is TimeUnit.BATCH
    remedy = (
        f"use a multiple of it, such as PostHocEMA(update_interval='{sync_every}')"
        if in_batches
        else f"give sync_every in batches and use a multiple of it, or EMA(half_life='{10 * sync_every}', "
        f"update_interval='{sync_every}', ema_start='{sync_every}')"
    )
    raise ValueError(
        f"update_interval={ema.update_interval} of PostHocEMA would average the weights of single replicas. {method} "
        f"synchronizes them every {sync_every}; {remedy}."
    )


def _is_multiple(time: Time, sync_every: Time) -> bool:
    return time.unit is sync_every.unit and time.value >= 1 and time.value % sync_every.value == 0
