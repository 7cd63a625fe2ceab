"""Tensor parallelism: shard the weight matrices of layers across ranks that compute on the same samples.

    Y = f(X A) B = sum_r f(X A_r) B_r        A by columns, B by rows       Shoeybi et al. 2019

Paper: https://arxiv.org/abs/1909.08053
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import Optimizer

from composer import dist
from composer.dist.dtensor import is_dtensor
from composer.parallel.config import TPConfig
from composer.parallel.mesh import Degrees, Meshes, make_meshes
from composer.parallel.meta_init import Materializer
from composer.parallel.optimizer_params import ParameterNames, shard_optimizers
from composer.parallel.strategy import Strategy

if TYPE_CHECKING:
    import torch.distributed as torch_dist

    from composer.core.state import State
    from composer.devices import Device

__all__ = ["TensorStrategy", "parallelize_layers", "prepare_tp_module", "sum_gradients"]


class TensorStrategy(Strategy):
    """Shards layers across all ranks, which compute on the same samples.

    Args:
        config: The configuration; its degree is the world size.

    >>> TensorStrategy(TPConfig()).data_world_size
    1
    """

    name = "tp"
    shards_weights = True
    has_collectives_per_microbatch = True

    def __init__(self, config: TPConfig) -> None:
        self.config = config
        self._meshes: Meshes | None = None
        self._parameters: list[nn.Parameter] = []

    @property
    def data_rank(self) -> int:
        """All ranks have the same samples."""
        return 0

    @property
    def data_world_size(self) -> int:
        """All ranks have the same samples."""
        return 1

    @property
    def data_group(self) -> torch_dist.ProcessGroup | None:
        """A process group of this rank alone."""
        return None if self._meshes is None else self._meshes.data_group

    def setup_device(self, model: nn.Module, device: Device) -> None:
        """Create the device mesh; the model stays in place until it is sharded.

        Args:
            model: The user's model.
            device: The target device.
        """
        self._meshes = make_meshes(Degrees(tensor=dist.get_world_size()), device.torch_device.type)
        self.device_mesh = self._meshes.all

    def prepare(self, state: State) -> None:
        """Shard the layers of the plan; weights are broadcast from rank 0.

        Args:
            state: The state of the run.
        """
        assert self._meshes is not None and self._meshes.tensor is not None
        names = ParameterNames(state.model)
        materializer = Materializer(state.model, state.device.torch_device)
        parallelize_layers(state.model, self._meshes.tensor, self.config.layer_plan or {}, materializer)
        materializer.materialize(state.model.modules())
        shard_optimizers(state.optimizers, names.replacements(state.model))
        self._parameters = list(state.model.parameters())

    def reduce(self) -> None:
        """Sum gradients that are still partial sums."""
        sum_gradients(self._parameters)

    def make_scaler(self, device_type: str) -> torch.amp.GradScaler:
        """Return a gradient scaler that synchronizes overflows across ranks.

        Args:
            device_type: The device type.
        """
        from composer.parallel.grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device_type)

    def close(self) -> None:
        """Release the parameters."""
        self._parameters = []


def parallelize_layers(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any], materializer: Materializer) -> None:
    """Shard layers over a mesh according to a plan, one after the other.

    Args:
        model: The model; its weights may be on the meta device.
        mesh: A one-dimensional mesh.
        plan: Styles of ``torch.distributed.tensor.parallel`` by module names, which may contain ``*``.
        materializer: Materializes each layer before it is sharded.

    Raises:
        ValueError: A name of the plan matches no module.

    >>> from torch.distributed.tensor.parallel import RowwiseParallel
    >>> dist.initialize_dist("cpu")
    >>> model, mesh = nn.Sequential(nn.Linear(2, 2)), make_meshes(Degrees(), "cpu").data
    >>> parallelize_layers(model, mesh, {"0": RowwiseParallel()}, Materializer(model, torch.device("cpu")))
    >>> model[0].weight.placements
    (Shard(dim=1),)
    >>> torch.distributed.destroy_process_group()
    """
    modules = dict(model.named_modules())
    for pattern, style in plan.items():
        names = [name for name in modules if fnmatch.fnmatch(name, pattern)]
        if not names:
            known = ", ".join(repr(name) for name in list(modules)[1:6])
            raise ValueError(f"tp: layer_plan names {pattern!r}, but the model has no such module; it has {known}, ...")
        for name in names:
            materializer.materialize(modules[name].modules())
            parallelize_module(modules[name], mesh, style)


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Redistribute each gradient to the placements of its parameter, which sums partial gradients.

    Args:
        parameters: The parameters, sharded or not.

    >>> sum_gradients([nn.Parameter(torch.ones(1))])
    """
    for parameter in parameters:
        if parameter.grad is not None and is_dtensor(parameter):
            sharded, gradient = cast("Any", parameter), cast("Any", parameter.grad)
            if gradient.placements != sharded.placements:
                parameter.grad = gradient.redistribute(placements=sharded.placements)


def prepare_tp_module(
    model: nn.Module, optimizers: Optimizer | Sequence[Optimizer] | None, tp_config: TPConfig
) -> None:
    """Apply tensor parallelism to a model, for custom training loops.

    Args:
        model: The model on its device, the same on all ranks.
        optimizers: Optimizers whose parameters are replaced by sharded ones.
        tp_config: The layer plan and the number of ranks.

    Raises:
        ValueError: A name of the plan matches no module, or an optimizer is LBFGS.

    >>> model = nn.Linear(2, 2)
    >>> prepare_tp_module(model, None, TPConfig(tensor_parallel_degree=1))  # nothing to shard
    >>> type(model.weight).__name__
    'Parameter'
    """
    if tp_config.tensor_parallel_degree == 1:
        return
    from composer.parallel.config import ParallelismConfig
    from composer.parallel.mesh import degrees_of

    device = next(model.parameters()).device
    degrees = degrees_of(ParallelismConfig(tp=tp_config))
    mesh = make_meshes(degrees, device.type).tensor
    assert mesh is not None
    names = ParameterNames(model)
    parallelize_layers(model, mesh, tp_config.layer_plan or {}, Materializer(model, device))
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
    shard_optimizers(chosen, names.replacements(model))
