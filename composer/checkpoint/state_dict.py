"""State dicts of models, optimizers and runs, for loops of one's own and for other formats."""

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
from composer.checkpoint.contents import PARTS
from composer.checkpoint.optimizer_states import optimizer_state
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
        sharded_state_dict: Whether each process is to get the parts that it holds; only for models that are divided.
        precision: Of the floating numbers: "fp32", "fp16", "bf16" or a dtype. Whole numbers stay what they are.
        include_keys: Patterns of the names to take; None is all.
        ignore_keys: Patterns of the names to leave out; not with ``include_keys``.
        cpu_offload: Whether the tensors go to the host; None leaves them where they are.

    Raises:
        ValueError: Both kinds of patterns are given, the precision is unknown, or the model is not divided.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> state = get_model_state_dict(model, precision="bf16", include_keys="1.*")
    >>> state["1.weight"].dtype, state["1.num_batches_tracked"].dtype
    (torch.bfloat16, torch.int64)
    """
    wanted = _filter(include_keys, ignore_keys)
    _check_sharding(model, sharded_state_dict)
    weights = {name: value for name, value in model.state_dict().items() if wanted(name)}
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
    """Return the state of an optimizer by the names of the parameters.

    Args:
        model: Names the parameters.
        optimizer: The optimizer.
        sharded_state_dict: Whether each process is to get the parts that it holds; only for models that are divided.
        precision: Of the floating numbers of the parameters' states: "fp32", "fp16", "bf16" or a dtype.
        include_keys: Patterns of the names of the parameters to take; None is all.
        ignore_keys: Patterns of those to leave out; not with ``include_keys``.
        cpu_offload: Whether the tensors go to the host; None leaves them where they are.

    Raises:
        ValueError: Both kinds of patterns are given, the precision is unknown, or the model is not divided.

    >>> model = nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> state = get_optim_state_dict(model, optimizer, ignore_keys="bias")
    >>> state["param_groups"][0]["params"]
    ['weight']
    """
    wanted = _filter(include_keys, ignore_keys)
    _check_sharding(model, sharded_state_dict)
    state = optimizer_state(model, optimizer)
    return {
        **state,
        "state": {
            name: trees.map_collection(value, lambda leaf: _converted(leaf, precision, cpu_offload))
            for name, value in state["state"].items()
            if wanted(name)
        },
        "param_groups": [
            {**group, "params": [name for name in group["params"] if wanted(name)]} for group in state["param_groups"]
        ],
    }


def get_metadata_state_dict(
    model: nn.Module | None = None,
    sharded_state_dict: bool | None = None,
    precision: str | Precision | None = None,
    device: Device | None = None,
    device_train_microbatch_size: int | float | None = None,
) -> dict[str, Any]:
    """Return what is worth knowing of a run later: versions, sizes, and what is given.

    Args:
        model: Its class is told.
        sharded_state_dict: Told as it is.
        precision: Told by its name.
        device: Told by its name.
        device_train_microbatch_size: Told as it is.

    >>> get_metadata_state_dict(nn.Linear(1, 1), precision="amp_bf16")["model_name"]
    'Linear'
    """
    found: dict[str, Any] = {
        "composer_version": __version__,
        "torch_version": str(torch.__version__),
        "world_size": dist.get_world_size(),
    }
    told = {
        "model_name": None if model is None else type(model).__qualname__,
        "sharded_state_dict": sharded_state_dict,
        "precision": None if precision is None else Precision(precision).value,
        "device": None if device is None else device.name,
        "device_train_microbatch_size": device_train_microbatch_size,
    }
    return found | {name: value for name, value in told.items() if value is not None}


def get_resumption_state_dict(state: State) -> dict[str, Any]:
    """Return what it takes to go on with a training, beside the model and the optimizers.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> sorted(get_resumption_state_dict(State(model=nn.Linear(1, 1))))[:3]
    ['algorithms', 'callbacks', 'dataset_state']
    """
    left_out = ("model", "optimizers", "integrations", "metadata")
    found = {part.name: part.take(state) for part in PARTS if part.name not in left_out and not part.on_request}
    return {name: value for name, value in found.items() if value is not None}


def _filter(include: str | Sequence[str] | None, ignore: str | Sequence[str] | None) -> Any:
    """Whether a name is wanted."""
    if include is not None and ignore is not None:
        raise ValueError(f"Give include_keys or ignore_keys, not both; got {include!r} and {ignore!r}.")
    patterns = trees.ensure_tuple(ignore if include is None else include)

    def wanted(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) == (include is not None)

    return wanted


def _check_sharding(model: nn.Module, sharded: bool) -> None:
    if sharded and not any(hasattr(parameter, "placements") for parameter in model.parameters()):
        raise ValueError("sharded_state_dict=True, but the model is not divided among processes; leave it out.")


def _converted(value: Any, precision: str | torch.dtype, to_host: bool | None) -> Any:
    dtype = precision if isinstance(precision, torch.dtype) else _DTYPES[one_of("precision", precision, _DTYPES)]
    if not isinstance(value, Tensor):
        return value
    value = value.to(dtype) if value.is_floating_point() else value
    return value.cpu() if to_host else value
