"""Changes of a trainer's arguments that cannot be written as an assignment of a literal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from composer import trees
from composer.callbacks import CheckpointSaver
from composer.core.data_spec import DataSpec
from composer.datasets import TensorLoader
from composer.diagnosis.outputs import saver_like
from composer.diagnosis.run_facts import interval_of
from composer.trees import ensure_tuple

__all__ = ["EDITS", "edit"]


def edit(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of the trainer or of ``fit`` with a change.

    Args:
        name: The change, of :data:`EDITS`, and after a colon what it is about, such as the name of a class.
        arguments: The arguments.

    >>> edit("tensor_loader", {"train_dataloader": None})
    {'train_dataloader': None}
    """
    name, _, about = name.partition(":")
    return EDITS[name](dict(arguments), about)


def _tensor_loader(arguments: dict[str, Any], about: str) -> dict[str, Any]:
    """Replace a DataLoader of a TensorDataset by a TensorLoader."""
    given = arguments.get("train_dataloader")
    loader: Any = given.dataloader if isinstance(given, DataSpec) else given
    if type(loader) is DataLoader and type(loader.dataset) is TensorDataset:
        made = TensorLoader(
            loader.dataset.tensors,
            loader.batch_size or 1,
            shuffle=isinstance(loader.sampler, RandomSampler),
            drop_last=loader.drop_last,
        )
        if isinstance(given, DataSpec):
            given.dataloader = made
        else:
            arguments["train_dataloader"] = made
    return arguments


def _single(arguments: dict[str, Any], about: str) -> dict[str, Any]:
    """Train in float32 what is in float64: the model, and the batches."""
    if "model" in arguments:
        arguments["model"] = arguments["model"].float()
    given = arguments.get("train_dataloader")
    if given is not None:
        spec = given if isinstance(given, DataSpec) else DataSpec(given)
        before = spec.batch_transforms

        def transformed(batch: Any) -> Any:
            batch = batch if before is None else before(batch)
            return trees.map_tensors(lambda t: t.float() if t.dtype == torch.float64 else t, batch)

        spec.batch_transforms = transformed
        arguments["train_dataloader"] = spec
    return arguments


def _tf32(arguments: dict[str, Any], about: str) -> dict[str, Any]:
    """Use TensorFloat32 for matrix products in float32 on CUDA."""
    torch.set_float32_matmul_precision("high")
    return arguments


def _save_async(arguments: dict[str, Any], about: str) -> dict[str, Any]:
    """Write checkpoints in the background, those of the trainer and of savers among its callbacks."""
    if "save_async" in arguments:
        arguments["save_async"] = True
    savers = [one for one in ensure_tuple(arguments.get("callbacks")) if isinstance(one, CheckpointSaver)]
    copies = {id(one): saver_like(one, Path(one.folder), asynchronous=True) for one in savers}
    if savers:
        arguments["callbacks"] = [copies.get(id(one), one) for one in ensure_tuple(arguments["callbacks"])]
    return arguments


def _log_interval(arguments: dict[str, Any], about: str) -> dict[str, Any]:
    """Let the callbacks and loggers of a class log every 100 batches; custom loggers pass 9 of 10 steps over."""
    for one in (*ensure_tuple(arguments.get("loggers")), *ensure_tuple(arguments.get("callbacks"))):
        if type(one).__name__ != about:
            continue
        attribute = interval_of(one)
        if attribute:
            setattr(one, attribute, 100)
        elif attribute is not None:
            _log_rarely(one)
    return arguments


def _log_rarely(logger: Any) -> None:
    """Let a logger receive the metrics of every tenth step only."""
    every_step = logger.log_metrics

    def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
        if step is None or step % 10 == 0:
            every_step(metrics, step)

    logger.log_metrics = log_metrics


EDITS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "tensor_loader": _tensor_loader,
    "single": _single,
    "tf32": _tf32,
    "save_async": _save_async,
    "log_interval": _log_interval,
}
