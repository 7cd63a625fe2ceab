"""Facts about a run that decide which remedies apply: its data, model, optimizers, outputs and device."""

from __future__ import annotations

import inspect
import math
import platform
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from composer import dist
from composer._cpus import cpu_quota, usable_cpus
from composer._resident_memory import resident_peak
from composer._version import __version__
from composer.callbacks import CheckpointSaver
from composer.core.data_spec import DataSpec
from composer.core.logger import LoggerDestination
from composer.environment import processor_name
from composer.optim.closure_use import may_use_closure
from composer.parallel.wrapping import repeated_blocks
from composer.trainer.compilation import is_compiled

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["facts_of", "interval_of"]

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
# How often a callback or logger logs, in batches.
_INTERVALS = ("batch_log_interval", "flush_interval")
# Arguments of a loader that require workers, and what they are without.
_WITHOUT_WORKERS = {"persistent_workers": False, "prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}


def facts_of(trainer: Trainer) -> dict[str, Any]:
    """Return the facts in JSON types.

    Args:
        trainer: The trainer, during or after ``fit``.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> facts = facts_of(
    ...     Trainer(model=ComposerClassifier(nn.Linear(2, 2), num_classes=2), progress_bar=False)
    ... )
    >>> facts["parameters"], facts["float64"]
    (6, False)
    """
    state = trainer.state
    run = trainer._run  # pyright: ignore[reportPrivateUsage]
    parameters = list(state.model.parameters())
    numbers = sum(p.numel() for p in parameters)
    doubles = sum(p.numel() for p in parameters if p.dtype == torch.float64)
    savers = [one for one in state.callbacks if isinstance(one, CheckpointSaver)]
    return {
        "composer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": state.device.torch_device.type,
        "device_name": _device_name(state.device.torch_device),
        "ranks": dist.get_world_size(),
        "cores": max(1, round(min(len(usable_cpus()), cpu_quota() or math.inf))),
        "threads": torch.get_num_threads(),
        "memory": resident_peak(),
        "precision": str(getattr(state.precision, "value", state.precision)),
        "parameters": numbers,
        "float64": doubles * 2 > numbers,
        "convolutions": any(isinstance(module, _CONVOLUTIONS) for module in state.model.modules()),
        "channels_last": any(type(a).__name__ == "ChannelsLast" for a in state.algorithms)
        or any(_is_channels_last(p) for p in parameters),
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
        "compiled": is_compiled(run),
        "anomaly": torch.is_anomaly_enabled(),
        "microbatch": state.device_train_microbatch_size,
        "find_unused_parameters": bool(getattr(run.strategy, "_find_unused", False)),
        "evaluators": [evaluator.label for evaluator in state.evaluators],
        "loggers": [type(logger).__name__ for logger in trainer.logger.destinations],
        "intervals": {
            type(one).__name__: (attribute, getattr(one, attribute, 1) if attribute else 1)
            for one in state.callbacks
            if (attribute := interval_of(one)) is not None
        },
        "batch_norm": any(isinstance(module, _BatchNorm) for module in state.model.modules()),
        "blocks": _blocks(state.model),
        "has_bf16": _has_bf16(state.device.torch_device.type),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "steps_by_closure": any(may_use_closure(type(one)) for one in state.optimizers),
        "savers": len(savers),
        "saves_in_background": all(saver.asynchronous for saver in savers),
        "optimizers": [_optimizer(one) for one in state.optimizers],
        "batch_transforms": _transform(state.train_phase.loader),
        "data": _data(state.train_phase.loader),
    }


def interval_of(output: object) -> str | None:
    """Return the name of the attribute that says how often a callback or logger logs, in batches.

    An empty string is that of a custom logger without one; None that of what has no interval.

    Args:
        output: The callback or logger.

    >>> from composer.callbacks import LRMonitor, OptimizerMonitor
    >>> interval_of(OptimizerMonitor()), interval_of(LRMonitor())
    ('batch_log_interval', None)
    """
    for name in _INTERVALS:
        if isinstance(getattr(output, name, None), int):
            return name
    is_own = isinstance(output, LoggerDestination) and not type(output).__module__.startswith("composer.")
    return "" if is_own else None


def _blocks(model: nn.Module) -> str | None:
    """Return the class of most of the blocks that a model repeats, such as its layers, or None if it repeats none."""
    classes = Counter(type(block).__name__ for block in repeated_blocks(model))
    return max(classes, key=lambda name: classes[name], default=None)


def _has_bf16(device: str) -> bool:
    """Return whether a device computes in bfloat16 faster than in float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        able = torch.cpu.get_capabilities()
        return bool(able.get("amx_bf16") or able.get("avx512_bf16"))
    return device != "meta"


def _device_name(device: torch.device) -> str:
    """Return the name of an accelerator, or of the processor."""
    if device.type == "cpu":
        return processor_name()
    module = torch.get_device_module(device)
    return module.get_device_name(device) if hasattr(module, "get_device_name") else device.type


def _is_channels_last(parameter: Any) -> bool:
    return (
        parameter.dim() == 4
        and min(parameter.shape[1:]) > 1
        and parameter.is_contiguous(memory_format=torch.channels_last)
        and not parameter.is_contiguous()
    )


def _optimizer(optimizer: Any) -> dict[str, Any]:
    accepted = inspect.signature(type(optimizer)).parameters
    group = optimizer.param_groups[0]
    return {
        "name": type(optimizer).__name__,
        "module": type(optimizer).__module__,
        "tensors": sum(len(each["params"]) for each in optimizer.param_groups),
        **{name: group.get(name) for name in ("foreach", "fused") if name in accepted},
        "accepts": [name for name in ("foreach", "fused") if name in accepted and name in group],
    }


def _transform(spec: Any) -> str | None:
    """Return the name of the function that transforms batches, empty if it has none; None without a function."""
    transform = getattr(spec, "batch_transforms", None)
    if transform is None:
        return None
    name: str = getattr(transform, "__name__", "")
    return name if name.isidentifier() else ""


def _data(spec: Any) -> dict[str, Any]:
    loader = spec.dataloader if isinstance(spec, DataSpec) else getattr(spec, "dataloader", spec)
    facts: dict[str, Any] = {"loader": type(loader).__name__, "is_loader": type(loader) is DataLoader}
    if type(loader) is not DataLoader:
        return facts
    dataset: Any = loader.dataset
    try:
        batches: int | None = len(loader)
    except TypeError:
        batches = None
    return {
        **facts,
        "dataset": type(dataset).__name__,
        "iterable": isinstance(dataset, IterableDataset),
        "workers": loader.num_workers,
        "worker_arguments": {
            name: none for name, none in _WITHOUT_WORKERS.items() if getattr(loader, name, none) != none
        },
        "persistent": loader.persistent_workers,
        "prefetch": loader.prefetch_factor,
        "pinned": loader.pin_memory,
        "batch_size": loader.batch_size,
        "batches": batches,
        "drop_last": loader.drop_last,
        "shuffled": type(loader.sampler) is RandomSampler,
        "tensors": type(dataset) is TensorDataset
        and loader.collate_fn is default_collate
        and loader.batch_size is not None
        and type(loader.sampler) in (RandomSampler, SequentialSampler),
    }
