"""The formats, and what writes each."""

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
from composer.export.samples import DynamicAxes, Sample, checked_names, names_of, varying
from composer.warnings import NoEffectWarning

__all__ = ["ExportFormat", "Options", "write"]

# A protocol buffer holds at most 2 GiB; with more, the weights of ONNX go into a file beside it.
_LARGEST_IN_ONE_FILE: Final = 2**31 - 2**26


class ExportFormat(StrEnum):
    """What a model is exported to. Members are found by value or name in any case.

    ``TORCH_EXPORT`` is a ``.pt2`` archive for :func:`torch.export.load` and AOTInductor, ``ONNX`` a graph that
    onnxruntime and many others run, ``TORCHSCRIPT`` a file for :func:`torch.jit.load`, also from C++; torch calls the
    last deprecated.

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
    """What beside the model decides about a file; None leaves it to the format.

    Attributes:
        dynamic_axes: The sizes of inputs that may vary.
        input_names: A name for each tensor of the sample.
        output_names: A name for each tensor that the model returns.
        opset: Version of the operators of ONNX.

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
        sample: What to call the model with; needed unless it can be scripted.
        options: What else is asked for.
        path: The file.

    Raises:
        ValueError: There is no sample, or an option does not fit the model.
        RuntimeError: The model can neither be scripted nor traced.

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
            _refuse_quantised(model, form, activations_only=False)
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
    """The model as TorchScript: its code if that is possible, else what it does with the sample."""
    try:
        if any(is_parametrized(part) for part in model.modules()):
            raise ValueError("TorchScript compiles a model with parametrized layers, but cannot run it.")
        return torch.jit.script(model)
    except Exception as error:  # of many kinds, some from the compiler and some from the source that it meets
        if sample is None:
            raise RuntimeError(
                f"{type(model).__name__} cannot be scripted, and without sample_input it cannot be traced: {error}"
            ) from error
    # strict=False lets the model return a dict.
    if sample.kwargs:
        raise RuntimeError(
            f"{type(model).__name__} cannot be scripted, and is traced with positional arguments only: sample_input "
            f"must not give {', '.join(sample.kwargs)} by name."
        )
    return torch.jit.trace(model, sample.args, strict=False)


def _export(
    model: nn.Module, form: ExportFormat, sample: Sample | None, options: Options
) -> tuple[torch.export.ExportedProgram, list[str]]:
    """The graph of the model, and the names of its inputs."""
    if sample is None:
        raise ValueError(f"sample_input must be given for the format {form.value}, which follows a call of the model.")
    if any(type(part).__module__.startswith("torch.ao.nn.quantized") for part in model.modules()):
        raise ValueError(f"A model quantised by quantize_dynamic has no {form.value} form; export it to torchscript.")
    if form is ExportFormat.ONNX:
        _refuse_quantised(model, form, activations_only=True)
    names = checked_names("input_names", options.input_names, sample.names)
    shapes = torch.export.ShapesCollection()
    dims = varying(sample, names, options.dynamic_axes, options.output_names or ("output",))
    for name, tensor in zip(names, sample.tensors, strict=True):
        if name in dims:
            shapes[tensor] = dims[name]
    # torch takes this class as well, and does not say so in its types.
    return torch.export.export(model, sample.args, sample.kwargs, dynamic_shapes=cast(Any, shapes)), names


def _refuse_quantised(model: nn.Module, form: ExportFormat, *, activations_only: bool) -> None:
    """Refuse what :func:`.quantize_int8` made, where the format has no operators for it."""
    whole = [tensor for tensor in model.parameters() if type(tensor).__module__.startswith("torchao.")]
    # Weights alone are kept as plain tensors, and put together by torchao's parametrisation.
    parts = [part for part in model.modules() if type(part).__module__.startswith("torchao.")]
    if whole or (parts and not activations_only):
        what = "quantize_int8(activations=True)" if whole else "quantize_int8"
        raise ValueError(f"A model quantised by {what} has no {form.value} form; export it to torch_export.")


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
        # The sizes are in the program already; here they get their names.
        dynamic_shapes=_named_sizes(names, options.dynamic_axes),
        opset_version=options.opset,
        dynamo=True,
        verbose=False,
    )
    size = sum(tensor.nbytes for tensor in program.state_dict.values() if isinstance(tensor, torch.Tensor))
    made.save(str(path), external_data=size > _LARGEST_IN_ONE_FILE)


def _named_sizes(names: list[str], axes: DynamicAxes | None) -> dict[str, dict[int, str]] | None:
    """The names that a user gave to sizes, for each input."""
    named = {name: dict(dims) for name, dims in (axes or {}).items() if isinstance(dims, Mapping) and name in names}
    return {name: named.get(name, {}) for name in names} if named else None


@contextlib.contextmanager
def _without_deprecations() -> Generator[None]:
    """Keep back what torch tells of its own code and of things that are right; users can do nothing about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        # Weights in another memory order, such as channels last, are whole all the same; and on the CPU.
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        # Two sizes that are equal have one name, which is the one that was asked for.
        warnings.filterwarnings("ignore", message=r"# The axis name: (\S+) will not be used, .* another axis: \1\.$")
        yield
