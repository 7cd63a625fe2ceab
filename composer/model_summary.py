"""Model summary: parameter counts by layer, trainable and frozen, memory, and what algorithms changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from composer import _html
from composer._text import dtype_name
from composer.core.model_changes import base_class
from composer.core.parameter_size import format_bytes, format_count, num_bytes, num_elements

__all__ = ["LayerSummary", "ModelSummary", "model_summary"]

# Wrapper classes, whose names are not shown as the model's.
_WRAPPERS = ("composer.models", "torch.nn.parallel", "torch._dynamo", "peft.")


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """The summary of a module including its descendants.

    Attributes:
        name: Name of the module in the model; empty for the model itself.
        type: Name of the class.
        depth: Nesting depth.
        parameters: Number of elements of the parameters; shared ones count in every module that uses them.
        trainable: Number of trainable elements.
        size: Memory of the parameters in bytes.
        dtypes: The dtypes, such as "float32".
        uninitialized: Number of parameters whose shape is not known yet.

    >>> model_summary(nn.Linear(3, 2)).layers[0].parameters
    8
    """

    name: str
    type: str
    depth: int
    parameters: int
    trainable: int
    size: int
    dtypes: str
    uninitialized: int = 0


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Parameter counts of a model; ``print(summary)`` and notebooks show a table.

    Sharded parameters count with their global size, and those that several modules share once.

    Attributes:
        name: Name of the model's class.
        layers: The modules down to the requested depth, the model itself first.
        parameters: Number of elements of all parameters.
        trainable: Number of trainable elements.
        size: Memory of the parameters in bytes, unsharded.
        shared: Number of parameters that are used in more than one column.
        uninitialized: Number of parameters whose shape is not known before the first batch.
        changes: What each algorithm changed in the model, by the name of the algorithm.

    >>> summary = model_summary(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    >>> summary.line()
    'Sequential: 8 parameters (all trainable), 32 B'
    >>> print(summary)
    layer       type        parameters  trainable  size  dtype
                Sequential           8          8  32 B  float32
    0           Linear               8          8  32 B  float32
    1           ReLU                 0          0   0 B
    Sequential: 8 parameters (all trainable), 32 B
    """

    name: str
    layers: tuple[LayerSummary, ...]
    parameters: int
    trainable: int
    size: int
    shared: int = 0
    uninitialized: int = 0
    changes: tuple[tuple[str, str], ...] = ()

    def line(self) -> str:
        """Return the totals and the changes as one line."""
        changes = [f"{algorithm} {text}" for algorithm, text in self.changes]
        return "; ".join([self._totals(), *changes])

    def __str__(self) -> str:
        """Return the table, with the totals below."""
        rows = [list(_COLUMNS), *([str(cell) for cell in row] for row in self._rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[0] = max(widths[0], 10)
        lines = [
            "  ".join(
                cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self._below()])

    def table(self) -> dict[str, Any]:
        """Return the table as plain values: ``name``, ``columns``, ``rows`` of text, and ``notes`` below it."""
        return {"name": self.name, "columns": list(_COLUMNS), "rows": list(self._rows()), "notes": self._below()}

    def _repr_html_(self) -> str:
        return _html.grid(self.name, _COLUMNS, self._rows(), self._below(), _NUMBERS)

    def _rows(self) -> Iterator[list[str]]:
        for layer in self.layers:
            indent = "  " * max(layer.depth - 1, 0)
            unknown = f" + {layer.uninitialized} uninitialized" if layer.uninitialized else ""
            numbers = [f"{layer.parameters:,}{unknown}", f"{layer.trainable:,}", format_bytes(layer.size)]
            yield [f"{indent}{layer.name.rpartition('.')[2]}", layer.type, *numbers, layer.dtypes]

    def _totals(self) -> str:
        trainable = "all" if self.trainable == self.parameters else format_count(self.trainable)
        text = f"{self.name}: {format_count(self.parameters)} parameters"
        if self.parameters:
            text += f" ({trainable} trainable), {format_bytes(self.size)}"
        return f"{text}, and {self.uninitialized} uninitialized" if self.uninitialized else text

    def _below(self) -> list[str]:
        lines = [self._totals()]
        if self.shared:
            lines.append(f"{self.shared} shared parameter{'s' * (self.shared != 1)}, in the total once")
        return [*lines, *(f"{algorithm} {text}" for algorithm, text in self.changes)]


_COLUMNS = ("layer", "type", "parameters", "trainable", "size", "dtype")
_NUMBERS = (2, 3, 4)


def model_summary(model: nn.Module, depth: int | None = 2, *, changes: Sequence[tuple[str, str]] = ()) -> ModelSummary:
    """Count the parameters of a model, layer by layer. No batch is needed, and nothing is communicated.

    Args:
        model: The model: sharded, quantized, on the meta device, with frozen, shared or uninitialized parameters.
        depth: Number of module levels to list; None lists all.
        changes: Names of algorithms and what they changed; :meth:`.Trainer.model_summary` passes them.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``depth`` is negative.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    >>> model[1].weight.requires_grad_(False) is not None
    True
    >>> model_summary(model, depth=0).line()
    'Sequential: 17 parameters (11 trainable), 68 B'
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}.")
    if depth is not None and depth < 0:
        raise ValueError(f"depth must be 0 or more, or None for all levels, but got {depth}.")
    inner = _unwrapped(model)
    total = _layer("", inner, 0)
    layers = [
        _layer(name, module, name.count(".") + 1)
        for name, module in inner.named_modules()
        if name and (depth is None or name.count(".") < depth)
    ]
    return ModelSummary(
        name=total.type,
        layers=(total, *layers),
        parameters=total.parameters,
        trainable=total.trainable,
        size=total.size,
        shared=_num_shared(inner),
        uninitialized=total.uninitialized,
        changes=tuple(changes),
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of wrappers that have no other parameters."""
    while base_class(model).__module__.startswith(_WRAPPERS):
        children = [child for child in model.children() if any(True for _ in child.parameters())]
        if len(children) != 1 or list(model.parameters(recurse=False)):
            break
        model = children[0]
    return model


def _layer(name: str, module: nn.Module, depth: int) -> LayerSummary:
    found = [*module.parameters(), *_packed(module)]
    numbers = [(parameter, num_elements(parameter)) for parameter in found]
    dtypes = dict.fromkeys(_dtype(parameter) for parameter, number in numbers if number is not None)
    return LayerSummary(
        name=name,
        type=base_class(module).__name__,
        depth=depth,
        parameters=sum(number or 0 for _, number in numbers),
        trainable=sum(number or 0 for parameter, number in numbers if parameter.requires_grad),
        size=sum(num_bytes(parameter) for parameter in found),
        dtypes=", ".join(dtypes),
        uninitialized=sum(number is None for _, number in numbers),
    )


def _packed(module: nn.Module) -> Iterator[Tensor]:
    """Yield the packed weights of torch's quantized layers, which ``parameters()`` does not return."""
    for child in module.modules():
        if type(child).__module__.startswith("torch.ao.nn.quantized"):
            for read in (getattr(child, "weight", None), getattr(child, "bias", None)):
                value: Any = read() if callable(read) else None
                if isinstance(value, Tensor):
                    yield value.detach()


def _dtype(parameter: Any) -> str:
    """Return the dtype, or the class name of a quantized tensor, whose dtype is only that of its computation."""
    is_quantized = hasattr(parameter, "quant_state") or hasattr(parameter, "__tensor_flatten__")
    if is_quantized and type(parameter) not in (Tensor, nn.Parameter) and not hasattr(parameter, "device_mesh"):
        return type(parameter).__name__
    return dtype_name(parameter.dtype)


def _num_shared(model: nn.Module) -> int:
    occurrences = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return sum(number > 1 for number in occurrences.values())
