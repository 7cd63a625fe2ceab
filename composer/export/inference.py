"""Export a model for inference: copy it to the CPU, apply surgery, weights and transforms, write the file."""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from composer import dist, trees
from composer.checkpoint.load import read_checkpoint, restore
from composer.core.logger import Logger
from composer.core.state import State
from composer.export.formats import ExportFormat, Options, write
from composer.export.samples import DynamicAxes, as_sample, check_arguments_match
from composer.parallel.float8_layers import restore_linear_layers
from composer.storage.atomic_upload import check_destination, deliver
from composer.storage.downloads import get_file

__all__ = ["Transform", "export_for_inference", "export_with_logger"]

Transform: TypeAlias = Callable[[nn.Module], nn.Module]
"""Takes a model in evaluation mode and returns the one to export, such as :func:`.quantize_dynamic`."""


def export_for_inference(
    model: nn.Module,
    save_format: str | ExportFormat,
    save_path: str | Path,
    save_object_store: Any = None,
    sample_input: Any = None,
    dynamic_axes: DynamicAxes | None = None,
    surgery_algs: Callable[[nn.Module], Any] | Sequence[Callable[[nn.Module], Any]] | None = None,
    transforms: Transform | Sequence[Transform] | None = None,
    onnx_opset_version: int | None = None,
    load_path: str | None = None,
    load_object_store: Any = None,
    load_strict: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Export a model to a file for inference.

    A copy on the CPU is changed by ``surgery_algs``, loads the weights of ``load_path``, is put into evaluation mode,
    transformed by ``transforms``, and written; the model itself does not change. With multiple ranks, rank 0 writes.
    The file is replaced atomically.

    The formats are those of :class:`.ExportFormat`. TorchScript is scripted from the model's code, or if that fails,
    traced with ``sample_input``; the other formats are always traced.

    Args:
        model: The model; not wrapped for multiple devices, nor sharded.
        save_format: ``"torchscript"``, ``"onnx"`` or ``"torch_export"``.
        save_path: A path, a URI, or a name in the object store.
        save_object_store: Object store with ``upload_object(object_name, filename)``; None for a path or URI.
        sample_input: Arguments to call the model with: a tuple of positional arguments, whose last entry, if it is a
            dict, holds keyword arguments. A value that is not a tuple is the only argument. For a batch (x, y), pass
            ``((x, y), {})``.
        dynamic_axes: Dimensions whose size may vary, ``{input: {dim: name}}`` with names that ONNX keeps, or
            ``{input: [dim, ...]}``. None lets dim 0 of all inputs vary if the model allows it; ``{}`` fixes all sizes.
            Keys may include ``output_names``, which are ignored: output sizes follow from the inputs.
        surgery_algs: Functions that change the model as in training, such as ``composer.functional.apply_blurpool``;
            a module that one returns replaces the model.
        transforms: Functions that return the module to export.
        onnx_opset_version: ONNX opset version; None uses the exporter's default.
        load_path: Path or URI of a checkpoint with the weights; None uses the weights of the model.
        load_object_store: The object store to download from, if ``load_path`` is an object name.
        load_strict: Whether missing or unexpected weights raise an error rather than a warning.
        input_names: A name for each tensor of ``sample_input``; by default its key, or ``input``.
        output_names: A name for each tensor that the model returns; by default its key, or ``output``.

    Raises:
        ValueError: The model is wrapped or sharded, the sample is missing, or an argument does not match the model.
        TypeError: The sample does not match the signature of the model, or a transform does not return a module.
        RuntimeError: The model can be neither scripted nor traced.
        MissingConditionalImportError: A package that writes ONNX is not installed.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/net.pt2"
    ...     export_for_inference(model, "torch_export", path, sample_input=torch.ones(4, 3))
    ...     exported = torch.export.load(path).module()
    >>> torch.equal(exported(torch.ones(1, 3)), model.eval()(torch.ones(1, 3)))
    True
    """
    form, save_path = ExportFormat(save_format), os.fspath(save_path)
    _check_unwrapped(model)
    if dist.get_global_rank() != 0:
        return
    check_destination(save_path, save_object_store)
    sample = None if sample_input is None else as_sample(sample_input)
    model = _copy_to_cpu(model)
    for change in _callables("surgery_algs", surgery_algs):
        changed = change(model)
        model = changed if isinstance(changed, nn.Module) else model
    if load_path is not None:
        _load(model, load_path, load_object_store, load_strict)
    model.eval()
    for transform in _callables("transforms", transforms):
        model = transform(model)
        if not isinstance(model, nn.Module):
            raise TypeError(f"transforms must return the module to export, but {transform!r} returned {model!r}.")
    if sample is not None:
        check_arguments_match(model, sample)
    options = Options(dynamic_axes, input_names, output_names, onnx_opset_version)
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        made = Path(folder, Path(save_path).name)
        write(model.eval(), form, sample, options, made)
        # Upload files that belong to the exported file first, so that it is complete when it appears.
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == made):
            destination = save_path if file == made else _sibling_path(save_path, file.name)
            deliver(file, destination, save_object_store)


def export_with_logger(
    model: nn.Module,
    save_format: str | ExportFormat,
    save_path: str | Path,
    logger: Logger,
    save_object_store: Any = None,
    sample_input: Any = None,
    transforms: Transform | Sequence[Transform] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Export a model like :func:`export_for_inference`, and upload it with the logger if a destination stores files.

    Args:
        model: The model.
        save_format: ``"torchscript"``, ``"onnx"`` or ``"torch_export"``.
        save_path: Name of the file in the destinations of the logger that store files. Without such destinations, or
            with an object store, the path to write to.
        logger: The logger.
        save_object_store: As for :func:`export_for_inference`.
        sample_input: As for :func:`export_for_inference`.
        transforms: As for :func:`export_for_inference`.
        input_names: As for :func:`export_for_inference`.
        output_names: As for :func:`export_for_inference`.

    Raises:
        ValueError: As for :func:`export_for_inference`.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = nn.Linear(3, 2)
    ...     export_with_logger(model, "torchscript", f"{folder}/net.pt", Logger(State(model=model)))
    ...     Path(folder, "net.pt").exists()
    True
    """
    save_path = os.fspath(save_path)

    def export(path: str) -> None:
        export_for_inference(
            model,
            save_format,
            path,
            save_object_store=save_object_store,
            sample_input=sample_input,
            transforms=transforms,
            input_names=input_names,
            output_names=output_names,
        )

    if save_object_store is not None or not logger.has_file_upload_destination():
        export(save_path)
        return
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        made = Path(folder, Path(save_path).name)
        export(str(made))
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == made):
            name = save_path if file == made else _sibling_path(save_path, file.name)
            logger.upload_file(name, file, overwrite=True)


def _sibling_path(path: str, name: str) -> str:
    """Return the path or URI of another name in the same folder."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


def _check_unwrapped(model: nn.Module) -> None:
    """Raise if the model is wrapped for distributed training or sharded."""
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        raise ValueError(f"model is wrapped in {type(model).__name__}; export model.module.")
    if torch.distributed.is_available() and _has_sharded_parameters(model):
        raise ValueError(
            "model is sharded across ranks. Save a checkpoint, and export the model from it: "
            "export_for_inference(new_model, ..., load_path=...)."
        )


def _has_sharded_parameters(model: nn.Module) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    tensors = itertools.chain(model.parameters(), model.buffers())
    wrapped = any(isinstance(module, FullyShardedDataParallel) for module in model.modules())
    return wrapped or any(isinstance(tensor, DTensor) for tensor in tensors)


def _copy_to_cpu(model: nn.Module) -> nn.Module:
    """Copy the model to the CPU; the device may not have memory for a second copy."""
    model = cast(nn.Module, getattr(model, "_orig_mod", model))
    memo: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        copied: Tensor = tensor.detach().to("cpu", copy=True)
        memo[id(tensor)] = nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied
    made = copy.deepcopy(model, memo)
    for module in made.modules():
        # It is compiled for the original, whose weights it references. Deleted rather than set to None, since
        # TorchScript cannot infer the type of that attribute.
        module.__dict__.pop("_compiled_call_impl", None)
    restore_linear_layers(made)
    return made


def _callables(argument: str, given: Any) -> tuple[Callable[[nn.Module], Any], ...]:
    """Return one or more functions as a tuple."""
    functions = trees.ensure_tuple(given)
    for function in functions:
        if not callable(function):
            raise TypeError(f"{argument} must be functions of a model, but got {function!r}.")
    return functions


def _load(model: nn.Module, path: str, object_store: Any, strict: bool) -> None:
    """Load the weights of a checkpoint into a model."""
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        local = Path(folder, Path(path).name)
        get_file(path, local, object_store, progress_bar=False)
        content = read_checkpoint(local)
    state = State(model=model)
    # surgery_algs have already changed the model.
    saved = [name for name, _ in content["state"].get("algorithms", [])]
    restore(state, Logger(state), content, weights_only=True, strict=strict, exclude_algorithms=saved)
