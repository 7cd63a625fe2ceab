"""Private functions of MosaicML Composer that published projects import and whose arguments differ here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from composer import dist
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.time import Time
from composer.devices import Device, DeviceCPU
from composer.models import _transformers
from composer.models._adapters import maybe_get_underlying_model, with_adapters
from composer.precision import Precision
from composer.storage.uris import parse_uri
from composer.trainer.schedules import scaled

__all__ = [
    "COMPOSER_STATES_FILENAME",
    "InContextLearningMetric",
    "fsdp_state_dict_type_context",
    "is_model_ddp",
    "is_registered_causal_lm",
    "is_uri",
    "map_batch",
    "maybe_get_peft_model",
    "scale_max_duration",
    "set_filo_order",
    "validate_precision",
]

COMPOSER_STATES_FILENAME = "composer_states.pt"


class InContextLearningMetric:
    """Placeholder for the in-context learning metrics, so that files which import their names can be imported.

    Raises:
        RuntimeError: Always: these metrics are in llm-foundry.

    >>> InContextLearningMetric()
    Traceback (most recent call last):
    RuntimeError: InContextLearningMetric: the metrics of in-context learning are in llmfoundry.eval.metrics.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise RuntimeError(f"{name}: the metrics of in-context learning are in llmfoundry.eval.metrics.")


@contextlib.contextmanager
def fsdp_state_dict_type_context(module: nn.Module, state_dict_type: str = "full") -> Generator[None]:
    """Make ``module.state_dict()`` of a sharded model return unsharded tensors on the CPU of rank 0, in a context.

    Args:
        module: A model, sharded by ``fully_shard`` or not.
        state_dict_type: "full", or "sharded" for the shards of each rank as they are.

    Raises:
        NotImplementedError: ``state_dict_type`` is neither.

    >>> with fsdp_state_dict_type_context(model := nn.Linear(1, 1)):
    ...     sorted(model.state_dict())
    ['bias', 'weight']
    """
    if state_dict_type not in ("full", "sharded"):
        raise NotImplementedError(f"state_dict_type must be 'full' or 'sharded', but got {state_dict_type!r}.")
    if state_dict_type == "sharded":
        yield
        return
    from composer.dist.dtensor import is_dtensor

    def unshard(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        names = [name for name, value in state.items() if isinstance(value, Tensor) and is_dtensor(value)]
        for name in names:
            state[name] = state[name].full_tensor().cpu()  # a collective, in the same order on all ranks
        if names and dist.get_global_rank() != 0:
            state.clear()

    handle = module.register_state_dict_post_hook(unshard)
    try:
        yield
    finally:
        handle.remove()


def is_model_ddp(model: nn.Module) -> bool:
    """Return whether a model is wrapped by ``DistributedDataParallel``.

    Args:
        model: The model.

    >>> is_model_ddp(nn.Linear(1, 1))
    False
    """
    return isinstance(model, nn.parallel.DistributedDataParallel)


def is_uri(path: str) -> bool:
    """Return whether a path is a URI of remote storage.

    Args:
        path: A path or URI.

    >>> is_uri("s3://bucket/a.pt"), is_uri("folder/a.pt")
    (True, False)
    """
    return bool(parse_uri(path)[0])


def map_batch(batch: Any, map_fn: Callable[[Any], Any]) -> Any:
    """Apply a function to each leaf of a batch, which is anything but a sequence or mapping.

    Args:
        batch: Nested sequences and mappings; a string is a leaf.
        map_fn: The function.

    >>> map_batch({"x": [1, (2, "a")]}, lambda leaf: leaf * 2)
    {'x': [2, (4, 'aa')]}
    """
    if isinstance(batch, Mapping):
        return {key: map_batch(value, map_fn) for key, value in cast("Mapping[Any, Any]", batch).items()}
    if not isinstance(batch, Sequence) or isinstance(batch, (str, bytes)):
        return map_fn(batch)
    entries = [map_batch(entry, map_fn) for entry in cast("Sequence[Any]", batch)]
    try:
        return cast(Any, type(cast(object, batch)))(entries)
    except TypeError:  # such as a named tuple
        return entries


def scale_max_duration(scale_schedule_ratio: float, orig_max_duration: Time | None) -> Time | None:
    """Return a duration multiplied by a ratio, in integer units.

    Args:
        scale_schedule_ratio: The ratio.
        orig_max_duration: The duration.

    >>> scale_max_duration(0.5, Time(10, "ep"))
    Time(5, TimeUnit.EPOCH)
    """
    return scaled(orig_max_duration, scale_schedule_ratio)


def set_filo_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Return algorithms in the order for an event: reversed for ``after_*`` events.

    Args:
        algorithms: The algorithms.
        event: The event.

    >>> set_filo_order(["a", "b"], Event.AFTER_LOSS), set_filo_order(["a", "b"], Event.BATCH_START)
    (['b', 'a'], ['a', 'b'])
    """
    return list(reversed(algorithms)) if event.value.startswith("after_") else list(algorithms)


def validate_precision(precision: Precision, device: Device) -> None:
    """Raise if a device does not support a precision.

    Args:
        precision: The precision.
        device: The device.

    Raises:
        ValueError: The device is the CPU, and the precision is reduced and not bfloat16.

    >>> validate_precision(Precision.FP32, DeviceCPU())
    """
    if isinstance(device, DeviceCPU) and precision not in (Precision.FP32, Precision.AMP_BF16):
        raise ValueError(f"precision={precision.value!r} does not work on the CPU; use 'fp32' or 'amp_bf16'.")


def is_registered_causal_lm(model: nn.Module) -> bool:
    """Return whether a transformers model, with adapters or not, is a causal language model.

    Args:
        model: The model.
    """
    return _transformers.is_causal(maybe_get_underlying_model(model))


def maybe_get_peft_model(peft_config: Any, model: nn.Module) -> nn.Module:
    """Add adapters to a model; a model that already has adapters is returned unchanged, with a warning.

    Args:
        peft_config: A ``PeftConfig``.
        model: A transformers model; modified in place.
    """
    return with_adapters(model, peft_config)


def __getattr__(name: str) -> Any:
    if name == "TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME":  # known only when the process knows its rank
        return f"__{dist.get_global_rank()}_0.distcp"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
