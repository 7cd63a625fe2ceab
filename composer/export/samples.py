"""Sample inputs for export: the arguments of the model, their names, and dynamic shapes (sizes that may vary)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from composer import trees
from composer._text import did_you_mean, plural
from composer.warnings import ComposerWarning

__all__ = ["DynamicAxes", "Sample", "as_sample", "check_arguments_match", "checked_names", "dynamic_shapes", "names_of"]

DynamicAxes: TypeAlias = Mapping[str, Mapping[int, str] | Sequence[int]]
"""Name of an input -> the dims whose size may vary, optionally with names for these sizes."""


@dataclass(frozen=True)
class Sample:
    """Arguments to call a model with.

    Attributes:
        args: The positional arguments, with all tensors on the CPU.
        kwargs: The keyword arguments.

    >>> Sample((torch.zeros(2),), {}).tensors
    [tensor([0., 0.])]
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which an exported model takes them."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @property
    def names(self) -> list[str]:
        """A name for each tensor: its key or index, with the prefix ``input`` if it does not start with a key."""
        alone = len(self.args) == 1 and not self.kwargs
        by_position = dict(enumerate(self.args))
        return names_of(self.args[0] if alone else {**by_position, **self.kwargs}, "input")


def as_sample(sample_input: Any) -> Sample:
    """Return the ``sample_input`` argument as the arguments of a call.

    Args:
        sample_input: A tuple of positional arguments, whose last entry, if it is a dict, holds keyword arguments; any
            other value is the only argument.

    >>> as_sample(({"x": torch.zeros(2)}, {})).names
    ['x']
    """
    if not isinstance(sample_input, tuple):
        sample_input = (sample_input,)
    sample_input = cast("tuple[Any, ...]", sample_input)
    args, kwargs = sample_input, cast("dict[str, Any]", {})
    if len(sample_input) > 1 and isinstance(sample_input[-1], dict):
        args, kwargs = sample_input[:-1], sample_input[-1]
    on_cpu = trees.map_tensors(lambda tensor: tensor.detach().cpu(), [list(args), kwargs])
    return Sample(tuple(on_cpu[0]), dict(on_cpu[1]))


def check_arguments_match(model: nn.Module, sample: Sample) -> None:
    """Raise if the model's ``forward`` cannot be called with a sample.

    Args:
        model: The model.
        sample: The sample.

    Raises:
        TypeError: The sample has too few or too many arguments, or unknown names.

    >>> check_arguments_match(nn.Linear(2, 1), as_sample(torch.zeros(3, 2)))
    """
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*sample.args, **sample.kwargs)
    except TypeError as error:
        raise TypeError(
            f"sample_input does not match {type(model).__name__}.forward{signature}: {error}. It must be a tuple of "
            f"the arguments; pass a batch (x, y) that is one argument as sample_input=((x, y), {{}})."
        ) from None


def names_of(tree: Any, default: str) -> list[str]:
    """Return a name for each tensor in a tree: its path, prefixed with ``default`` unless it starts with a key.

    Args:
        tree: A tensor, or a collection of tensors.
        default: Name of a tensor without a key.

    >>> names_of([torch.zeros(1), {"mask": torch.zeros(1)}], "input"), names_of(torch.zeros(1), "output")
    (['input_0', 'mask'], ['output'])
    """
    names: list[str] = []
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, Tensor):
            keys = [str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path]
            first = next((index for index, key in enumerate(keys) if not key.isdigit()), None)
            names.append("_".join([default, *keys] if first is None else keys[first:]))
    if len(set(names)) < len(names):
        return [f"{default}_{index}" for index in range(len(names))]
    return names


def checked_names(argument: str, names: Sequence[str] | None, defaults: list[str]) -> list[str]:
    """Return the given names of all inputs or outputs, or the defaults.

    Args:
        argument: Name of the argument, for the message.
        names: The given names, or None.
        defaults: The default names.

    Raises:
        ValueError: The number of names is wrong.

    >>> checked_names("input_names", ["image"], ["input"])
    ['image']
    """
    if names is None:
        return defaults
    if isinstance(names, str) or len(names) != len(defaults):
        there = f"{plural(len(defaults), argument.partition('_')[0])}, by default called {', '.join(defaults)}"
        raise ValueError(f"{argument}={names!r} must be a list with one name for each of {there}.")
    return list(names)


def dynamic_shapes(
    sample: Sample, names: Sequence[str], axes: DynamicAxes | None, outputs: Sequence[str] = ()
) -> dict[str, dict[int, Any]]:
    """Return the dynamic shapes of each input for :mod:`torch.export`.

    Names of sizes only label the file: they do not constrain sizes to be equal, which the model determines.

    Args:
        sample: The sample.
        names: A name for each of its tensors.
        axes: The ``dynamic_axes`` argument; None lets dim 0 of each tensor vary, if the model allows it.
        outputs: Names of outputs, which ``axes`` may contain and which are ignored.

    Raises:
        ValueError: A name or a dim does not exist.

    >>> from torch.export import Dim
    >>> dynamic_shapes(as_sample(torch.zeros(2, 3)), ["input"], {"input": [0]}) == {
    ...     "input": {0: Dim.DYNAMIC}
    ... }
    True
    """
    from torch.export import Dim

    tensors = dict(zip(names, sample.tensors, strict=True))
    if axes is None:
        if any(tensor.ndim and tensor.shape[0] == 1 for tensor in tensors.values()):
            message = (
                "sample_input has a tensor with one row, so torch.export fixes the number of rows to one. Use a sample "
                "with two or more rows, or dynamic_axes={} to fix all sizes."
            )
            warnings.warn(message, ComposerWarning, stacklevel=4)
        return {name: {0: Dim.AUTO} for name, tensor in tensors.items() if tensor.ndim}
    found: dict[str, dict[int, Any]] = {}
    for name, dims in axes.items():
        if name in outputs:
            continue
        if name not in tensors:
            hint = did_you_mean(name, tensors)
            raise ValueError(f"dynamic_axes has {name!r}, but the inputs are {', '.join(map(repr, tensors))}.{hint}")
        for dim in dims:
            if not 0 <= dim < tensors[name].ndim:
                shape = tuple(tensors[name].shape)
                raise ValueError(f"dynamic_axes[{name!r}] has dim {dim}, but that input has shape {shape}.")
        found[name] = dict.fromkeys(dims, Dim.DYNAMIC)
    return found
