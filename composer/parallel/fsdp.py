"""Fully sharded data parallelism (FSDP2, ``fully_shard``): shard parameters, all-gather one block at a time when used.

With N parameters and W ranks, each rank keeps N / W of the weights, gradients and optimizer states, plus one unsharded
block at a time.        Zhao et al. 2023, https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.optim import Optimizer

from composer import dist
from composer._text import one_of
from composer.core.checkpoint_folders import CheckpointFolders
from composer.devices import get_device
from composer.dist.dtensor import is_dtensor
from composer.parallel.activation_checkpointing import checkpoint_as_configured
from composer.parallel.added_parameters import AddedParameters
from composer.parallel.config import FSDP2Config, FSDPConfig, ParallelismConfig, as_parallelism_config
from composer.parallel.ddp import average_gradients
from composer.parallel.gather_outside_forward import GatherOutsideForward
from composer.parallel.grad_scaler import ShardedGradScaler
from composer.parallel.mesh import Meshes, degrees_of, make_meshes
from composer.parallel.meta_init import Materializer
from composer.parallel.mixed_precision import autocast_cache_enabled, mixed_precision_policy
from composer.parallel.module_sharder import ModuleSharder
from composer.parallel.optimizer_params import ParameterNames, shard_optimizers
from composer.parallel.strategy import Strategy
from composer.parallel.tensor_parallel import parallelize_layers, sum_gradients
from composer.parallel.unfinished_collectives import CollectiveLog
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
    """Shards weights with ``fully_shard``, optionally combined with tensor parallelism.

    Gradients are averaged across ranks. They are reduce-scattered with every microbatch; the replicas of HSDP are
    all-reduced with the last one.

    Args:
        config: The FSDP and tensor parallelism configuration.
        sync: ``"single_auto_sync"`` keeps unsharded gradients until the last microbatch of a batch, which needs memory
            for them and saves communication; ``"multi_auto_sync"`` reduce-scatters with every microbatch. None selects
            the latter, unless weights are not sharded.
        find_unused_parameters: Whether some parameters may be unused in a step, possibly different ones per rank.

    Raises:
        ValueError: The configuration does not fit the world size.

    >>> FSDPStrategy(ParallelismConfig(fsdp=FSDPConfig())).shards_weights
    True

    Paper: https://arxiv.org/abs/2304.11277 (Zhao et al. 2023)
    """

    name = "fsdp"
    shards_weights = True
    has_collectives_per_microbatch = True
    needs_trial_microbatches = True

    def __init__(
        self, config: ParallelismConfig, sync: str | None = None, *, find_unused_parameters: bool = False
    ) -> None:
        self.config = config
        self.degrees = degrees_of(config)
        self.find_unused_parameters = find_unused_parameters
        if sync is not None:
            one_of("ddp_sync_strategy", str(sync), ("single_auto_sync", "multi_auto_sync"))
        self._defers_sync = self.degrees.shard == 1 if sync is None else sync == "single_auto_sync"
        self._meshes: Meshes | None = None
        self._root: FSDPModule | None = None
        self._policy: MixedPrecisionPolicy | None = None
        self._sharded: list[nn.Parameter] = []
        self._replicated: list[nn.Parameter] = []
        self._added: AddedParameters | None = None
        self._syncs = True
        fsdp = config.fsdp
        if fsdp is not None and fsdp.state_dict_type == "sharded":
            names = fsdp.sharded_ckpt_prefix_dir, fsdp.save_planner, fsdp.load_planner
            self.checkpoint_folders = CheckpointFolders(*names)
        self.rank_zero_reads = fsdp is not None and fsdp.load_monolith_rank0_only
        # Collectives of tensor parallelism and replicas are not recorded; older torch cannot abort forward or backward.
        self.can_finish_collectives = (
            self.degrees.tensor == self.degrees.replicate == 1
            and hasattr(FSDPModule, "reset_iter_state")
            and hasattr(torch.distributed, "all_gather_single")
        )
        self._log: CollectiveLog | None = None

    @property
    def data_rank(self) -> int:
        """Index of this rank's data shard; the ranks of a tensor-parallel group have the same."""
        return dist.get_global_rank() // self.degrees.tensor

    @property
    def data_world_size(self) -> int:
        """Number of data shards."""
        return self.degrees.data

    @property
    def data_group(self) -> torch_dist.ProcessGroup | None:
        """The process group whose ranks together have all data shards; None for all ranks."""
        return None if self._meshes is None else self._meshes.data_group

    def setup_device(self, model: nn.Module, device: Device) -> None:
        """Create the device mesh; the model stays in place, since its blocks are moved one by one when sharded.

        Args:
            model: The user's model.
            device: The target device.
        """
        fsdp = self.config.fsdp
        if fsdp is not None and fsdp.cpu_offload and device.torch_device.type == "cpu":
            raise ValueError("fsdp: cpu_offload=True requires an accelerator; with device='cpu', leave it out.")
        given = None if fsdp is None else fsdp.device_mesh
        self._meshes = make_meshes(self.degrees, device.torch_device.type, given)
        self.device_mesh = self._meshes.all

    def resolve_precision(self, requested: Precision | None, device: Device) -> Precision:
        """Return the precision to train in, for which the weights are sharded once.

        Args:
            requested: The user's argument; None selects the device's default.
            device: The device of the model.

        Raises:
            ValueError: The weights are already sharded for another precision.
        """
        precision = super().resolve_precision(requested, device)
        mixed = "DEFAULT" if self.config.fsdp is None else self.config.fsdp.mixed_precision
        if self._policy is not None and mixed_precision_policy(mixed, precision) != self._policy:
            raise ValueError(
                f"precision={precision.value!r}, but the weights are sharded for another precision, in which they are "
                f"all-gathered and their gradients reduced. Pass the precision to the Trainer, or use "
                f"parallelism_config={{'fsdp': {{'mixed_precision': 'FULL'}}}}, which works with every precision."
            )
        return precision

    def prepare(self, state: State) -> None:
        """Shard the model and the optimizer states; weights are broadcast from rank 0.

        Args:
            state: The state of the run.

        Raises:
            ValueError: An algorithm needs second-order gradients, or this version of torch does not support unused
                parameters.
        """
        for algorithm in state.algorithms:
            if algorithm.backwards_create_graph:
                raise ValueError(
                    f"{type(algorithm).__name__} needs second-order gradients, which FSDP does not support; use data "
                    f"parallelism (parallelism_config=None)."
                )
        self.shard_model(state.model, state.optimizers, state.device.torch_device, state.precision)
        self._added = AddedParameters(state)
        state.autocast_cache_enabled = self.autocast_cache_enabled
        if self.find_unused_parameters or any(one.find_unused_parameters for one in state.algorithms):
            if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
                raise ValueError(
                    f"torch {torch.__version__} does not support parameters without a gradient with sharded weights. "
                    f"Use data parallelism (parallelism_config=None), or torch 2.13 or newer."
                )
            cast(FSDPModule, state.model).set_reduce_scatter_unused_params(True)

    def shard_model(
        self, model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device, precision: str | Precision | None
    ) -> None:
        """Shard a model and its optimizer states.

        Args:
            model: The model, after :meth:`setup_device`.
            optimizers: Optimizers of the model.
            device: The target device of the weights.
            precision: The training precision; None is float32.
        """
        assert self._meshes is not None and self._meshes.data is not None
        config = self.config.fsdp or FSDPConfig(reshard_after_forward=False)
        names, materializer = ParameterNames(model), Materializer(model, device)
        modules = {module: name for name, module in model.named_modules()}
        if self.config.tp is not None and self._meshes.tensor is not None:
            parallelize_layers(model, self._meshes.tensor, self.config.tp.layer_plan or {}, materializer)
        if config.activation_checkpointing or config.activation_cpu_offload:
            checkpoint_as_configured(model, config)
        units = units_of(model, auto_wrap=config.auto_wrap, ignored=config.ignored_modules or ())
        for module in config.ignored_modules or ():
            materializer.materialize(module.modules())
        units, float32 = float32_units(model, units, config, precision)
        self.autocast_cache_enabled = autocast_cache_enabled(model, units, config, precision)
        shard = ModuleSharder(config, self._meshes.data, precision, materializer)
        self._policy = mixed_precision_policy(config.mixed_precision, precision)
        for unit in (*float32, *units):
            shard(unit.module, **unit.settings)
            if config.verbose:
                _log.info("fsdp: %s is a separate FSDP unit.", modules[unit.module])
        shard(model, is_root=True)
        # Modules with tied weights or without weights may not be materialized yet.
        materializer.materialize(model.modules())
        shard_optimizers(optimizers, names.replacements(model))
        self._replicated = [parameter for parameter in model.parameters() if not is_dtensor(parameter)]
        self._sharded = [parameter for parameter in model.parameters() if is_dtensor(parameter)]
        self._root = cast(FSDPModule, model)
        GatherOutsideForward(model, [cast(FSDPModule, unit.module) for unit in float32])
        prefetch([cast(FSDPModule, unit.module) for unit in reversed(units)], self._root, config)

    def begin_batch(self) -> None:
        """Replicate parameters that were added to an optimizer in training, as with a new layer."""
        if self._added is not None:
            self._replicated += self._added.broadcast()

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for a microbatch, after which gradients are synchronized if it is the last.

        Args:
            is_last: Whether it is the last microbatch of its batch.
        """
        if self._root is not None and is_last != self._syncs:
            if self._defers_sync:
                self._root.set_requires_gradient_sync(is_last)
            elif self.degrees.replicate > 1:
                self._root.set_requires_all_reduce(is_last)
            self._syncs = is_last
        return nullcontext() if self._log is None else self._log.microbatch(is_last=is_last)

    def record_collectives(self) -> None:
        """Record the all-gathers and reduce-scatters of each microbatch."""
        if self._log is None:
            self._log = CollectiveLog(cast(nn.Module, self._root))

    def finish_collectives(self, microbatches: int) -> None:
        """Issue the remaining all-gathers and reduce-scatters of the batch, with zeros.

        Args:
            microbatches: Number of microbatches of the batch that are not complete.
        """
        assert self._root is not None and self._log is not None
        self._root.reset_iter_state()  # frees all-gathered weights
        self._log.issue_remaining(microbatches)

    def discard_batch(self, state: State) -> None:
        """Abort a forward or backward pass: free all-gathered weights, and gradients that are not reduced.

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
        """Average the gradients of replicated (unsharded) parameters; sum partial gradients of tensor parallelism.

        Parameters that were added to an optimizer since the forward pass are replicated, too.
        """
        self.begin_batch()
        if trained := [parameter for parameter in self._replicated if parameter.requires_grad]:
            average_gradients(trained, self.data_group)
        if self.degrees.tensor > 1:
            sum_gradients(self._sharded)

    def make_scaler(self, device_type: str) -> torch.amp.GradScaler:
        """Return a gradient scaler that synchronizes overflows across ranks.

        Args:
            device_type: The device type.
        """
        return ShardedGradScaler(device_type)

    def close(self) -> None:
        """Release the model."""
        self._root, self._sharded, self._replicated, self._log, self._added = None, [], [], None, None


def prepare_fsdp_module(
    model: nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    fsdp_config: FSDPConfig | Mapping[str, Any],
    precision: str | Precision | None = None,
    device: Device | None = None,
) -> None:
    """Shard a model across all ranks, for custom training loops.

    Args:
        model: The model; its weights may be on the meta device.
        optimizers: Optimizers whose parameters and states are sharded as well.
        fsdp_config: A :class:`.FSDPConfig` or its keys.
        precision: The training precision, for ``mixed_precision``; None is float32.
        device: The target device; by default the accelerator if there is one.

    >>> dist.initialize_dist("cpu")
    >>> model = nn.Linear(2, 2)
    >>> prepare_fsdp_module(model, None, {}, device=get_device("cpu"))
    >>> model.weight.placements
    (Shard(dim=0),)
    >>> torch.distributed.destroy_process_group()
    """
    config = as_parallelism_config({"fsdp": fsdp_config})
    assert config is not None
    target = get_device(None) if device is None else device
    strategy = FSDPStrategy(config)
    strategy.setup_device(model, target)
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
    strategy.shard_model(model, chosen, target.torch_device, precision)


def parallelize_composer_model(
    composer_model: nn.Module,
    optimizer: Optimizer | None,
    config: FSDP2Config | FSDPConfig,
    precision: str | Precision | None = None,
) -> None:
    """Shard a model across all ranks; a wrapper of :func:`prepare_fsdp_module` for existing scripts.

    Args:
        composer_model: The model.
        optimizer: An optimizer whose parameters and state are sharded as well.
        config: The sharding configuration.
        precision: The training precision; None is float32.

    >>> dist.initialize_dist("cpu")
    >>> model = nn.Linear(2, 2)
    >>> parallelize_composer_model(model, None, FSDP2Config())
    >>> torch.distributed.destroy_process_group()
    """
    fsdp = config.as_fsdp() if isinstance(config, FSDP2Config) else config
    prepare_fsdp_module(composer_model, optimizer, fsdp, precision)


def is_model_fsdp(model: nn.Module) -> bool:
    """Return whether a model, or a module of it, is sharded by ``fully_shard``.

    Args:
        model: The model.

    >>> is_model_fsdp(nn.Linear(1, 1))
    False
    """
    return any(isinstance(module, FSDPModule) for module in model.modules())
