"""Shard the weights of one module after another with ``fully_shard``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from composer.parallel.config import FSDPConfig
from composer.parallel.meta_init import Materializer
from composer.parallel.mixed_precision import mixed_precision_policy

if TYPE_CHECKING:
    from composer.precision import Precision

__all__ = ["ModuleSharder"]


class ModuleSharder:
    """Applies ``fully_shard`` to modules, inner ones first.

    Args:
        config: The configuration.
        mesh: The ranks among which weights are sharded.
        precision: The training precision; None is float32.
        materializer: Allocates weights on the meta device.

    >>> from composer import dist
    >>> dist.initialize_dist("cpu")
    >>> model = nn.Linear(2, 2)
    >>> mesh = torch.distributed.init_device_mesh("cpu", (1,))
    >>> ModuleSharder(FSDPConfig(), mesh, None, Materializer(model, torch.device("cpu")))(
    ...     model, is_root=True
    ... )
    >>> isinstance(model, FSDPModule)
    True
    >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        config: FSDPConfig,
        mesh: DeviceMesh,
        precision: str | Precision | None,
        materializer: Materializer,
    ) -> None:
        self._config, self._mesh, self._precision, self._materializer = config, mesh, precision, materializer
        self._ignored = {parameter for module in config.ignored_modules or () for parameter in module.parameters()}

    def __call__(self, module: nn.Module, *, is_root: bool = False, **settings: Any) -> None:
        """Shard the weights of a module that are not sharded yet.

        Args:
            module: The module.
            is_root: Whether it is the full model, whose own weights are needed again when the backward pass begins.
            settings: Settings of this module, see :class:`.Unit`.
        """
        if isinstance(module, FSDPModule):
            return  # already sharded by the user
        self._materializer.materialize(_unsharded_modules(module))
        config = dataclasses.replace(self._config, **settings, device_mesh=None)
        resharding = None if is_root and config.reshards is not False else config.reshards
        fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=resharding,
            mp_policy=mixed_precision_policy(config.mixed_precision, self._precision),
            offload_policy=CPUOffloadPolicy() if config.cpu_offload else OffloadPolicy(),
            # Scalars cannot be sharded; each rank keeps them.
            ignored_params=self._ignored | {parameter for parameter in module.parameters() if parameter.ndim == 0},
        )


def _unsharded_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its descendants that are not sharded yet, outer ones first."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _unsharded_modules(child)
