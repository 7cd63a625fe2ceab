"""The export formats (TorchScript, ONNX, torch.export), and how to write each to a file."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils import _pytree as pytree

from composer._lazy import import_extra
from composer._text import member_of
from composer.export.samples import DynamicAxes, Sample, checked_names, dynamic_shapes, names_of
from composer.warnings import NoEffectWarning

__all__ = ["ExportFormat", "Options", "write"]

# A protocol buffer holds at most 2 GiB; larger ONNX weights go into a separate file in the same folder.
_LARGEST_IN_ONE_FILE: Final = 2**31 - 2**26


class ExportFormat(StrEnum):
    """Format to export a model to. Members are found by value or name, case-insensitive.

    ``TORCH_EXPORT`` is a ``.pt2`` archive for :func:`torch.export.load` and AOTInductor, ``ONNX`` a graph that
    onnxruntime and many others run, ``TORCHSCRIPT`` a file for :func:`torch.jit.load`, also from C++; torch has
    deprecated TorchScript.

    Raises:
        ValueError: For an unknown name.

    >>> ExportFormat("ONNX"), ExportFormat("torch_export") is ExportFormat.TORCH_EXPORT
    (<ExportFormat.ONNX: 'onnx'>, True)
    """

    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    TORCH_EXPORT = "torch_export"

    @classmethod
    def _missing_(cls, value: object) -> ExportFormat:
        return member_of(cls, "save_format", value)


@dataclass(frozen=True)
class Options:
    """Export options; None uses the default of the format.

    Attributes:
        dynamic_axes: Dimensions of inputs whose size may vary.
        input_names: A name for each tensor of the sample.
        output_names: A name for each tensor that the model returns.
        opset: ONNX opset version.

    >>> Options(opset=20).given
    ['onnx_opset_version']
    """

    dynamic_axes: DynamicAxes | None = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    opset: int | None = None

    @property
    def given(self) -> list[str]:
        """The arguments that are not None."""
        values = {
            "dynamic_axes": self.dynamic_axes,
            "input_names": self.input_names,
            "output_names": self.output_names,
            "onnx_opset_version": self.opset,
        }
        return [name for name, value in values.items() if value is not None]


def write(model: nn.Module, form: ExportFormat, sample: Sample | None, options: Options, path: Path) -> None:
    """Write a model in evaluation mode on the CPU to a file.

    Args:
        model: The model.
        form: The format.
        sample: Arguments to call the model with; required unless it can be scripted.
        options: The export options.
        path: The file.

    Raises:
        ValueError: The sample is missing, or an option does not match the model.
        RuntimeError: The model can be neither scripted nor traced.

    >>> import tempfile
    >>> from composer.export.samples import as_sample
    >>> sample = as_sample(torch.ones(2, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(
    ...         nn.Linear(3, 1).eval(), ExportFormat.TORCH_EXPORT, sample, Options(), Path(folder, "a.pt2")
    ...     )
    ...     torch.export.load(f"{folder}/a.pt2").module()(torch.ones(7, 3)).shape
    torch.Size([7, 1])
    """
    unused = [name for name in options.given if name not in _USED[form]]
    if unused:
        message = f"{', '.join(unused)} has no effect on the format {form.value}."
        warnings.warn(message, NoEffectWarning, stacklevel=3)
    with torch.no_grad(), _without_deprecations():
        if form is ExportFormat.TORCHSCRIPT:
            _check_quantized(model, form, activations_only=False)
            torch.jit.save(_script(model, sample), str(path))
            return
        program, names = _export(model, form, sample, options)
        if form is ExportFormat.TORCH_EXPORT:
            torch.export.save(program, str(path))
        else:
            _write_onnx(program, names, options, path)


_USED: Final[dict[ExportFormat, tuple[str, ...]]] = {
    ExportFormat.TORCHSCRIPT: (),
    ExportFormat.ONNX: ("dynamic_axes", "input_names", "output_names", "onnx_opset_version"),
    ExportFormat.TORCH_EXPORT: ("dynamic_axes", "input_names"),
}


def _script(model: nn.Module, sample: Sample | None) -> Any:
    """Return the model as TorchScript: scripted if possible, otherwise traced with the sample."""
    try:
        if any(is_parametrized(module) for module in model.modules()):
            raise ValueError("TorchScript compiles a model with parametrized layers, but cannot run it.")
        return torch.jit.script(model)
    except Exception as error:  # of many types, from the compiler or from the compiled source
        if sample is None:
            raise RuntimeError(
                f"{type(model).__name__} cannot be scripted, and without sample_input it cannot be traced: {error}"
            ) from error
    # strict=False lets the model return a dict.
    if sample.kwargs:
        raise RuntimeError(
            f"{type(model).__name__} cannot be scripted, and tracing supports only positional arguments: sample_input "
            f"must not give {', '.join(sample.kwargs)} by name."
        )
    return torch.jit.trace(model, sample.args, strict=False)


def _export(
    model: nn.Module, form: ExportFormat, sample: Sample | None, options: Options
) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Return the exported graph of the model, and the names of its inputs."""
    if sample is None:
        raise ValueError(f"sample_input is required for the format {form.value}, which traces a call of the model.")
    if any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules()):
        raise ValueError(
            f"A model quantized by quantize_dynamic cannot be exported to {form.value}; export it to torchscript."
        )
    if form is ExportFormat.ONNX:
        _check_quantized(model, form, activations_only=True)
    names = checked_names("input_names", options.input_names, sample.names)
    shapes = torch.export.ShapesCollection()
    dims = dynamic_shapes(sample, names, options.dynamic_axes, options.output_names or ("output",))
    for name, tensor in zip(names, sample.tensors, strict=True):
        if name in dims:
            shapes[tensor] = dims[name]
    # torch accepts this class, although its annotation does not include it.
    return torch.export.export(model, sample.args, sample.kwargs, dynamic_shapes=cast(Any, shapes)), names


def _check_quantized(model: nn.Module, form: ExportFormat, *, activations_only: bool) -> None:
    """Raise for a model quantized by :func:`.quantize_int8` if the format has no operators for it."""
    parameters = [tensor for tensor in model.parameters() if type(tensor).__module__.startswith("torchao.")]
    # With weights only, they are plain tensors with a parametrization of torchao.
    modules = [module for module in model.modules() if type(module).__module__.startswith("torchao.")]
    if parameters or (modules and not activations_only):
        what = "quantize_int8(activations=True)" if parameters else "quantize_int8"
        raise ValueError(f"A model quantized by {what} cannot be exported to {form.value}; export it to torch_export.")


def _write_onnx(program: torch.export.ExportedProgram, names: list[str], options: Options, path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        import_extra(package, "onnx", "Exporting to ONNX")
    spec = cast(pytree.TreeSpec, program.call_spec.out_spec)
    outputs = pytree.tree_unflatten([torch.empty(0)] * spec.num_leaves, spec)
    output_names = checked_names("output_names", options.output_names, names_of(outputs, "output"))
    made: Any = torch.onnx.export(
        program,
        (),
        input_names=names,
        output_names=output_names,
        # The program already has the dynamic sizes; this sets their names.
        dynamic_shapes=_named_sizes(names, options.dynamic_axes),
        opset_version=options.opset,
        dynamo=True,
        verbose=False,
    )
    size = sum(tensor.nbytes for tensor in program.state_dict.values() if isinstance(tensor, torch.Tensor))
    made.save(str(path), external_data=size > _LARGEST_IN_ONE_FILE)


def _named_sizes(names: list[str], axes: DynamicAxes | None) -> dict[str, dict[int, str]] | None:
    """Return the names that the user gave to sizes, for each input."""
    named = {name: dict(dims) for name, dims in (axes or {}).items() if isinstance(dims, Mapping) and name in names}
    return {name: named.get(name, {}) for name in names} if named else None


@contextlib.contextmanager
def _without_deprecations() -> Generator[None]:
    """Suppress warnings of torch about its own code that users cannot act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        # Complete weights in another memory format, such as channels last, raise this warning too.
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        # Equal sizes share one name, which is the requested one.
        warnings.filterwarnings("ignore", message=r"# The axis name: (\S+) will not be used, .* another axis: \1\.$")
        yield
