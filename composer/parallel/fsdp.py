"""Fully sharded data parallelism: each process keeps a part of every weight, and gathers blocks when they are used.

With N parameters and W processes each one keeps N / W of the weights, the gradients and the optimizer's states, and one
block of whole weights at a time.        Zhao et al. 2023, https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.optim import Optimizer

from composer import dist
from composer._text import one_of
from composer.core.checkpoint_folders import CheckpointFolders
from composer.devices import get_device
from composer.dist.dtensor import is_sharded
from composer.parallel.activation_checkpointing import checkpoint_as_configured
from composer.parallel.collective_log import CollectiveLog
from composer.parallel.config import FSDP2Config, FSDPConfig, ParallelismConfig, as_parallelism_config
from composer.parallel.ddp import average_gradients
from composer.parallel.gather_outside_forward import GatherOutsideForward
from composer.parallel.grad_scaler import ShardedGradScaler
from composer.parallel.mesh import Meshes, degrees_of, make_meshes
from composer.parallel.meta_init import Placement
from composer.parallel.mixed_precision import caches_casts, mixed_precision_policy
from composer.parallel.optimizer_params import Names, shard_optimizers
from composer.parallel.strategy import Strategy
from composer.parallel.tensor_parallel import parallelize_layers, sum_gradients
from composer.parallel.unsharded_parameters import drop_unsharded_gradients
from composer.parallel.wrapping import float32_units, prefetch, units_of

if TYPE_CHECKING:
    import torch.distributed as torch_dist

    from composer.core.state import State
    from composer.devices import Device
    from composer.precision import Precision

__all__ = ["FSDPStrategy", "is_model_fsdp", "parallelize_composer_model", "prepare_fsdp_module"]

_log = logging.getLogger(__name__)


class FSDPStrategy(Strategy):
    """Divides weights by torch's ``fully_shard``, layers too if a plan says so.

    Gradients are averaged over processes. With every microbatch each process takes its part of them, and copies of the
    weights (HSDP) are brought together with the last one.

    Args:
        config: What is divided, and among how many.
        sync: ``"single_auto_sync"`` keeps whole gradients until the last microbatch of a batch, which takes the memory
            for them and saves the communication; ``"multi_auto_sync"`` takes parts with every microbatch. None is the
            latter, unless weights are not divided.
        find_unused_parameters: Whether parameters may get no gradient in a step, others on other processes.

    Raises:
        ValueError: The configuration does not fit the number of processes.

    >>> FSDPStrategy(ParallelismConfig(fsdp=FSDPConfig())).shards_weights
    True

    Paper: https://arxiv.org/abs/2304.11277 (Zhao et al. 2023)
    """

    name = "fsdp"
    shards_weights = True
    syncs_in_forward = True
    has_to_rehearse = True

    def __init__(
        self, config: ParallelismConfig, sync: str | None = None, *, find_unused_parameters: bool = False
    ) -> None:
        self.config = config
        self.degrees = degrees_of(config)
        self.find_unused_parameters = find_unused_parameters
        if sync is not None:
            one_of("ddp_sync_strategy", str(sync), ("single_auto_sync", "multi_auto_sync"))
        self._waits = self.degrees.shard == 1 if sync is None else sync == "single_auto_sync"
        self._meshes: Meshes | None = None
        self._root: FSDPModule | None = None
        self._policy: MixedPrecisionPolicy | None = None
        self._divided: list[nn.Parameter] = []
        self._whole: list[nn.Parameter] = []
        self._syncs = True
        fsdp = config.fsdp
        if fsdp is not None and fsdp.state_dict_type == "sharded":
            names = fsdp.sharded_ckpt_prefix_dir, fsdp.save_planner, fsdp.load_planner
            self.checkpoint_folders = CheckpointFolders(*names)
        self.first_reads = fsdp is not None and fsdp.load_monolith_rank0_only
        # Sharded layers and replicas communicate unseen; older versions of torch cannot leave the middle of a pass.
        self.can_catch_up = (
            self.degrees.tensor == self.degrees.replicate == 1
            and hasattr(FSDPModule, "reset_iter_state")
            and hasattr(torch.distributed, "all_gather_single")
        )
        self._log: CollectiveLog | None = None

    @property
    def data_rank(self) -> int:
        """Which part of the data; processes that divide layers have the same."""
        return dist.get_global_rank() // self.degrees.tensor

    @property
    def data_world_size(self) -> int:
        """Number of parts of the data."""
        return self.degrees.data

    @property
    def data_group(self) -> torch_dist.ProcessGroup | None:
        """The processes that have all parts of the data together; None is all of them."""
        return None if self._meshes is None else self._meshes.data_group

    def place(self, model: nn.Module, device: Device) -> None:
        """Leave the model where it is: its blocks are moved one by one when they are divided.

        Args:
            model: The user's model.
            device: Where it will be.
        """
        fsdp = self.config.fsdp
        if fsdp is not None and fsdp.cpu_offload and device.torch_device.type == "cpu":
            raise ValueError("fsdp: cpu_offload=True needs an accelerator; on the CPU weights are there already.")
        given = None if fsdp is None else fsdp.device_mesh
        self._meshes = make_meshes(self.degrees, device.torch_device.type, given)
        self.device_mesh = self._meshes.all

    def settle_precision(self, asked: Precision | None, device: Device) -> Precision:
        """Return the precision to train in, for which the weights are sharded once.

        Args:
            asked: What the user gave; None is the best that the device has.
            device: Where the model is.

        Raises:
            ValueError: The weights are sharded already, for another one.
        """
        precision = super().settle_precision(asked, device)
        mixed = "DEFAULT" if self.config.fsdp is None else self.config.fsdp.mixed_precision
        if self._policy is not None and mixed_precision_policy(mixed, precision) != self._policy:
            raise ValueError(
                f"precision={precision.value!r}, but the weights are sharded for another precision, in which they are "
                f"gathered and their gradients added up. Give the precision to the Trainer, or "
                f"parallelism_config={{'fsdp': {{'mixed_precision': 'FULL'}}}}, which fits all."
            )
        return precision

    def prepare(self, state: State) -> None:
        """Divide the model and the states of the optimizers; the weights of the first process become those of all.

        Args:
            state: The state of the run.

        Raises:
            ValueError: A method needs gradients of gradients, or this version of torch cannot have unused parameters.
        """
        for algorithm in state.algorithms:
            if algorithm.backwards_create_graph:
                raise ValueError(
                    f"{type(algorithm).__name__} needs gradients of gradients, which fsdp does not have; train with "
                    f"data parallelism (parallelism_config=None)."
                )
        self.divide(state.model, state.optimizers, state.device.torch_device, state.precision)
        state.caches_casts = self.caches_casts
        if self.find_unused_parameters or any(one.find_unused_parameters for one in state.algorithms):
            if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
                raise ValueError(
                    f"torch {torch.__version__} cannot have parameters without a gradient where weights are divided; "
                    f"2.13 can. Train with data parallelism (parallelism_config=None), or with a newer torch."
                )
            cast(FSDPModule, state.model).set_reduce_scatter_unused_params(True)

    def divide(
        self, model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device, precision: str | Precision | None
    ) -> None:
        """Divide a model and the states of its optimizers.

        Args:
            model: After :meth:`place`.
            optimizers: Those that are to follow.
            device: Where the weights are to be.
            precision: That of the training; None is float32.
        """
        assert self._meshes is not None and self._meshes.data is not None
        config = self.config.fsdp or FSDPConfig(reshard_after_forward=False)
        names, placement = Names(model), Placement(model, device)
        modules = {module: name for name, module in model.named_modules()}
        if self.config.tp is not None and self._meshes.tensor is not None:
            parallelize_layers(model, self._meshes.tensor, self.config.tp.layer_plan or {}, placement)
        if config.activation_checkpointing or config.activation_cpu_offload:
            checkpoint_as_configured(model, config)
        units = units_of(model, auto_wrap=config.auto_wrap, ignored=config.ignored_modules or ())
        for module in config.ignored_modules or ():
            placement.give(module.modules())
        wide = float32_units(model, units, config, precision)
        self.caches_casts = caches_casts(model, units, config, precision)
        shard = _Sharding(config, self._meshes.data, precision, placement)
        self._policy = mixed_precision_policy(config.mixed_precision, precision)
        for unit in (*wide, *units):
            shard(unit.module, **unit.settings)
            if config.verbose:
                _log.info("fsdp: %s is gathered by itself.", modules[unit.module])
        shard(model, is_root=True)
        # Modules that share their weights with others, or have none, may not have come by.
        placement.give(model.modules())
        shard_optimizers(optimizers, names.replacements(model))
        self._whole = [parameter for parameter in model.parameters() if not is_sharded(parameter)]
        self._divided = [parameter for parameter in model.parameters() if is_sharded(parameter)]
        self._root = cast(FSDPModule, model)
        GatherOutsideForward(model, [cast(FSDPModule, unit.module) for unit in wide])
        prefetch([cast(FSDPModule, unit.module) for unit in reversed(units)], self._root, config)

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for a microbatch, after which gradients are brought together if it is the last.

        Args:
            is_last: Whether it is the last of its batch.
        """
        if self._root is not None and is_last != self._syncs:
            if self._waits:
                self._root.set_requires_gradient_sync(is_last)
            elif self.degrees.replicate > 1:
                self._root.set_requires_all_reduce(is_last)
            self._syncs = is_last
        return nullcontext() if self._log is None else self._log.microbatch(is_last=is_last)

    def watch(self) -> None:
        """Write down what is gathered and reduced."""
        if self._log is None:
            self._log = CollectiveLog(cast(nn.Module, self._root))

    def catch_up(self, microbatches: int) -> None:
        """Gather and reduce zeros, as often as the others expect.

        Args:
            microbatches: Number of those of the batch that are not done.
        """
        assert self._root is not None and self._log is not None
        self._root.reset_iter_state()  # frees what it has gathered
        self._log.start_rest(microbatches)

    def recover(self, state: State) -> None:
        """Leave the middle of a pass: free gathered weights, and gradients that are not reduced.

        Args:
            state: The state of the run.
        """
        if self._root is not None:
            if hasattr(FSDPModule, "reset_iter_state"):
                self._root.reset_iter_state()
            drop_unsharded_gradients(cast(nn.Module, self._root))
        if self._log is not None:
            self._log.abandon()

    def reduce(self) -> None:
        """Average the gradients of weights that are not divided."""
        if trained := [parameter for parameter in self._whole if parameter.requires_grad]:
            average_gradients(trained, self.data_group)
        if self.degrees.tensor > 1:
            sum_gradients(self._divided)

    def make_scaler(self, device_type: str) -> torch.amp.GradScaler:
        """Return a scaler that agrees on overflows.

        Args:
            device_type: The type of the device.
        """
        return ShardedGradScaler(device_type)

    def close(self) -> None:
        """Let go of the model."""
        self._root, self._divided, self._whole, self._log = None, [], [], None


def prepare_fsdp_module(
    model: nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    fsdp_config: FSDPConfig | Mapping[str, Any],
    precision: str | Precision | None = None,
    device: Device | None = None,
) -> None:
    """Divide a model among all processes, for loops of one's own.

    Args:
        model: The model; its weights may lie on ``meta``.
        optimizers: Whose parameters and states are to follow.
        fsdp_config: A :class:`.FSDPConfig` or its keys.
        precision: That of the training, for ``mixed_precision``; None is float32.
        device: Where the weights are to be; by default the accelerator if there is one.

    >>> dist.initialize_dist("cpu")
    >>> model = nn.Linear(2, 2)
    >>> prepare_fsdp_module(model, None, {}, device=get_device("cpu"))
    >>> model.weight.placements
    (Shard(dim=0),)
    >>> torch.distributed.destroy_process_group()
    """
    config = as_parallelism_config({"fsdp": fsdp_config})
    assert config is not None
    where = get_device(None) if device is None else device
    strategy = FSDPStrategy(config)
    strategy.place(model, where)
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
    strategy.divide(model, chosen, where.torch_device, precision)


def parallelize_composer_model(
    composer_model: nn.Module,
    optimizer: Optimizer | None,
    config: FSDP2Config | FSDPConfig,
    precision: str | Precision | None = None,
) -> None:
    """Divide a model among all processes, as :func:`prepare_fsdp_module`; the other name that scripts know.

    Args:
        composer_model: The model.
        optimizer: Whose parameters and state are to follow.
        config: How.
        precision: That of the training; None is float32.

    >>> dist.initialize_dist("cpu")
    >>> model = nn.Linear(2, 2)
    >>> parallelize_composer_model(model, None, FSDP2Config())
    >>> torch.distributed.destroy_process_group()
    """
    fsdp = config.as_fsdp() if isinstance(config, FSDP2Config) else config
    prepare_fsdp_module(composer_model, optimizer, fsdp, precision)


def is_model_fsdp(model: nn.Module) -> bool:
    """Tell whether a model, or a part of it, is divided among processes by ``fully_shard``.

    Args:
        model: The model.

    >>> is_model_fsdp(nn.Linear(1, 1))
    False
    """
    return any(isinstance(module, FSDPModule) for module in model.modules())


class _Sharding:
    """Applies ``fully_shard`` to one module after the other, inner ones first."""

    def __init__(
        self,
        config: FSDPConfig,
        mesh: DeviceMesh,
        precision: str | Precision | None,
        placement: Placement,
    ) -> None:
        self._config, self._mesh, self._precision, self._placement = config, mesh, precision, placement
        self._ignored = {parameter for module in config.ignored_modules or () for parameter in module.parameters()}

    def __call__(self, module: nn.Module, *, is_root: bool = False, **settings: Any) -> None:
        """Divide the weights of a module that are not divided yet.

        Args:
            module: The module.
            is_root: Whether it is the whole model, whose own weights are used again when the backward pass begins.
            settings: What is its own, see :class:`.Unit`.
        """
        if isinstance(module, FSDPModule):
            return  # the user has done it already
        self._placement.give(_own_modules(module))
        config = dataclasses.replace(self._config, **settings, device_mesh=None)
        resharding = None if is_root and config.reshards is not False else config.reshards
        fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=resharding,
            mp_policy=mixed_precision_policy(config.mixed_precision, self._precision),
            offload_policy=CPUOffloadPolicy() if config.cpu_offload else OffloadPolicy(),
            # Numbers have no parts; each process keeps them.
            ignored_params=self._ignored | {parameter for parameter in module.parameters() if parameter.ndim == 0},
        )


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those inside it that are not divided yet, outer ones first."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _own_modules(child)
