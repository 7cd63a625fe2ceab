"""Changes of a trainer's arguments that cannot be written as an assignment of a literal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from composer import trees
from composer.core.data_spec import DataSpec
from composer.datasets import TensorLoader

__all__ = ["EDITS", "edit"]


def edit(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of the trainer or of ``fit`` with a change.

    Args:
        name: The change, of :data:`EDITS`.
        arguments: The arguments.

    >>> edit("tensor_loader", {"train_dataloader": None})
    {'train_dataloader': None}
    """
    return EDITS[name](dict(arguments))


def _tensor_loader(arguments: dict[str, Any]) -> dict[str, Any]:
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


def _single(arguments: dict[str, Any]) -> dict[str, Any]:
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


EDITS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"tensor_loader": _tensor_loader, "single": _single}
