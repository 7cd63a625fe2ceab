"""State dicts of models, optimizers and runs, for custom training loops and other checkpoint formats."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composer import dist, trees
from composer._text import one_of
from composer._version import __version__
from composer.checkpoint.contents import STATE_ENTRIES
from composer.checkpoint.optimizer_states import is_by_parameter, optimizer_state
from composer.devices import Device
from composer.precision import Precision

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = [
    "get_metadata_state_dict",
    "get_model_state_dict",
    "get_optim_state_dict",
    "get_resumption_state_dict",
]

_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "amp_fp16": torch.float16,
    "amp_bf16": torch.bfloat16,
}


def get_model_state_dict(
    model: nn.Module,
    sharded_state_dict: bool = False,
    precision: str | torch.dtype = "fp32",
    include_keys: str | Sequence[str] | None = None,
    ignore_keys: str | Sequence[str] | None = None,
    cpu_offload: bool | None = None,
) -> dict[str, Any]:
    """Return the weights of a model by name.

    Args:
        model: The model.
        sharded_state_dict: Whether each rank gets its local shards; requires a sharded model.
        precision: Dtype of floating-point tensors: "fp32", "fp16", "bf16" or a dtype. Integers are unchanged.
        include_keys: Glob patterns of the names to include; None includes all.
        ignore_keys: Glob patterns of the names to exclude; not with ``include_keys``.
        cpu_offload: Whether to move the tensors to the host; None keeps their device.

    Raises:
        ValueError: Both include and ignore keys are given, the precision is unknown, or the model is not sharded.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> state = get_model_state_dict(model, precision="bf16", include_keys="1.*")
    >>> state["1.weight"].dtype, state["1.num_batches_tracked"].dtype
    (torch.bfloat16, torch.int64)
    """
    selected = _filter(include_keys, ignore_keys)
    _check_sharding(model, sharded_state_dict)
    weights = {name: value for name, value in model.state_dict().items() if selected(name)}
    return {name: _converted(value, precision, cpu_offload) for name, value in weights.items()}


def get_optim_state_dict(
    model: nn.Module,
    optimizer: Optimizer,
    sharded_state_dict: bool = False,
    precision: str | torch.dtype = "fp32",
    include_keys: str | Sequence[str] | None = None,
    ignore_keys: str | Sequence[str] | None = None,
    cpu_offload: bool | None = None,
) -> dict[str, Any]:
    """Return the state of an optimizer by parameter name.

    Args:
        model: Provides the parameter names.
        optimizer: The optimizer.
        sharded_state_dict: Whether each rank gets its local shards; requires a sharded model.
        precision: Dtype of floating-point tensors in the state: "fp32", "fp16", "bf16" or a dtype.
        include_keys: Glob patterns of the parameter names to include; None includes all.
        ignore_keys: Glob patterns of the parameter names to exclude; not with ``include_keys``.
        cpu_offload: Whether to move the tensors to the host; None keeps their device.

    Raises:
        ValueError: Both include and ignore keys are given, the precision is unknown, the model is not sharded, or keys
            are given for an optimizer whose state is not by parameter.

    >>> model = nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> state = get_optim_state_dict(model, optimizer, ignore_keys="bias")
    >>> state["param_groups"][0]["params"]
    ['weight']
    """
    selected = _filter(include_keys, ignore_keys)
    _check_sharding(model, sharded_state_dict)
    state = optimizer_state(model, optimizer)

    def convert(value: Any) -> Any:
        return trees.map_collection(value, lambda leaf: _converted(leaf, precision, cpu_offload))

    if not is_by_parameter(state):
        if include_keys is not None or ignore_keys is not None:
            raise ValueError(
                f"include_keys and ignore_keys select parameters, but the state of {type(optimizer).__qualname__} is "
                f"not by parameter, since it has a state_dict of its own. Leave them out."
            )
        return convert(state)
    return {
        **state,
        "state": {name: convert(value) for name, value in state["state"].items() if selected(name)},
        "param_groups": [
            {**group, "params": [name for name in group["params"] if selected(name)]} for group in state["param_groups"]
        ],
    }


def get_metadata_state_dict(
    model: nn.Module | None = None,
    sharded_state_dict: bool | None = None,
    precision: str | Precision | None = None,
    device: Device | None = None,
    device_train_microbatch_size: int | float | None = None,
) -> dict[str, Any]:
    """Return metadata of a run: versions, world size, and the given values.

    Args:
        model: The model; its class name is included.
        sharded_state_dict: Included as it is.
        precision: Included by name.
        device: Included by name.
        device_train_microbatch_size: Included as it is.

    >>> get_metadata_state_dict(nn.Linear(1, 1), precision="amp_bf16")["model_name"]
    'Linear'
    """
    found: dict[str, Any] = {
        "composer_version": __version__,
        "torch_version": str(torch.__version__),
        "world_size": dist.get_world_size(),
    }
    values = {
        "model_name": None if model is None else type(model).__qualname__,
        "sharded_state_dict": sharded_state_dict,
        "precision": None if precision is None else Precision(precision).value,
        "device": None if device is None else device.name,
        "device_train_microbatch_size": device_train_microbatch_size,
    }
    return found | {name: value for name, value in values.items() if value is not None}


def get_resumption_state_dict(state: State) -> dict[str, Any]:
    """Return the state that is needed to resume training, in addition to the model and the optimizers.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> sorted(get_resumption_state_dict(State(model=nn.Linear(1, 1))))[:3]
    ['algorithms', 'callbacks', 'dataset_state']
    """
    excluded = ("model", "optimizers", "integrations", "metadata")
    found = {
        entry.name: entry.get(state) for entry in STATE_ENTRIES if entry.name not in excluded and not entry.on_request
    }
    return {name: value for name, value in found.items() if value is not None}


def _filter(include: str | Sequence[str] | None, ignore: str | Sequence[str] | None) -> Any:
    """Return a function that selects names."""
    if include is not None and ignore is not None:
        raise ValueError(f"Pass include_keys or ignore_keys, not both; got {include!r} and {ignore!r}.")
    patterns = trees.ensure_tuple(ignore if include is None else include)

    def selected(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) == (include is not None)

    return selected


def _check_sharding(model: nn.Module, sharded: bool) -> None:
    if sharded and not any(hasattr(parameter, "placements") for parameter in model.parameters()):
        raise ValueError("sharded_state_dict=True, but the model is not sharded; use sharded_state_dict=False.")


def _converted(value: Any, precision: str | torch.dtype, to_host: bool | None) -> Any:
    dtype = precision if isinstance(precision, torch.dtype) else _DTYPES[one_of("precision", precision, _DTYPES)]
    if not isinstance(value, Tensor):
        return value
    value = value.to(dtype) if value.is_floating_point() else value
    return value.cpu() if to_host else value
