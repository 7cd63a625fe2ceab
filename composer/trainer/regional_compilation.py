"""Regional compilation: compile each class of repeated blocks once with ``torch.compile``, instead of the full model.

A transformer of n equal blocks is compiled in the time of one block, so that a cold start takes less time.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn

from composer._module_hooks import module_hooks
from composer._text import first_of
from composer.parallel.wrapping import repeated_blocks, shared_by_blocks
from composer.trainer.dynamic_dims import DynamicDims, is_compiled_by_size, with_recompile_limit
from composer.warnings import ComposerWarning

__all__ = ["compile_blocks"]


def compile_blocks(
    model: nn.Module, config: dict[str, Any], dynamic: DynamicDims | None = None
) -> list[list[nn.Module]]:
    """Compile the repeated blocks of a model in place, so that types, parameter names and hooks do not change.

    Blocks of the same class whose weights have the same shapes share one compiled function. Compilation happens at the
    first call. Hooks of the blocks, such as those of FSDP, run outside of the compiled functions. Hooks of layers in a
    block are compiled with it, so blocks share a function only if their layers have the same hooks at their first
    calls. A copy of a block, or a block that was pickled, is not compiled.

    Args:
        model: The model, after algorithms, activation checkpointing and sharding have changed it.
        config: Arguments of :func:`torch.compile`.
        dynamic: The sizes that change in training, so that a block is compiled for any of them at first.

    Returns:
        The blocks that share a compiled function, for each function.

    Warns:
        ComposerWarning: Some blocks share weights with other modules, and are not compiled.

    Raises:
        ValueError: The model has no repeated blocks, or all of these share weights.

    >>> blocks = [nn.TransformerEncoderLayer(4, 2, 8) for _ in range(3)]
    >>> [len(each) for each in compile_blocks(nn.Sequential(*blocks), {"backend": "eager"})]
    [3]
    """
    blocks = _blocks_of(model)
    groups: dict[Any, list[nn.Module]] = {}
    for block in blocks:
        groups.setdefault(_structure(block), []).append(block)
    numbers = itertools.count()
    for group in groups.values():
        by_size = dynamic is not None and any(dynamic.dims) and is_compiled_by_size(group[0], config)
        functions = _Functions(group[0], _with_limit(config, group, by_size=by_size), numbers)
        for block in group:
            block._compiled_call_impl = _CompiledBlock(block, functions, dynamic, by_size=by_size)
    return list(groups.values())


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks to compile."""
    name = type(model).__name__
    try:
        blocks = repeated_blocks(model)
    except ValueError as error:
        raise ValueError(
            f"compile_config: regional=True cannot compile the blocks of {name}. {error} Or leave 'regional' out to "
            f"compile the full model."
        ) from error
    shared = shared_by_blocks(model)
    if shared and blocks:
        warnings.warn(
            f"compile_config: regional=True compiles {len(blocks)} blocks of {name}. The others share "
            f"{first_of(shared)}, and run eagerly. Leave 'regional' out to compile the full model.",
            ComposerWarning,
            stacklevel=2,
        )
    if not blocks and shared:
        raise ValueError(
            f"compile_config: regional=True compiles the blocks that a model repeats if each has weights of its own, "
            f"but the blocks of {name} share {first_of(shared)}. Leave 'regional' out to compile the full model."
        )
    if not blocks:
        raise ValueError(
            f"compile_config: regional=True compiles the blocks that a model repeats, such as the layers of a "
            f"transformer in an nn.ModuleList, not one that it calls several times, nor an nn.Sequential, and {name} "
            f"has none. Leave 'regional' out to compile the full model, or, if it has several blocks elsewhere or as "
            f"nn.Sequential, select them: set module._fsdp_wrap = True on each."
        )
    return blocks


class _Functions:
    """The compiled functions of blocks with the same structure: one, unless their layers have different hooks.

    torch does not check at a call whether the hooks of layers are those that were compiled.
    """

    def __init__(self, block: nn.Module, config: dict[str, Any], numbers: Iterator[int]) -> None:
        self._block, self._config, self._numbers = block, config, numbers
        self._first: Callable[..., Any] | None = self._compiled()
        # The hooks are kept, so that their ids are not given to others.
        self._by_hooks: dict[tuple[int, ...], tuple[list[Any], Callable[..., Any]]] = {}

    def of(self, block: nn.Module) -> Callable[..., Any]:
        """Return the function for a block with its present hooks."""
        hooks = _hooks_of_layers(block)
        key = tuple(map(id, hooks))
        if key not in self._by_hooks:
            compiled, self._first = self._first or self._compiled(), None
            self._by_hooks[key] = hooks, compiled
        return self._by_hooks[key][1]

    def _compiled(self) -> Callable[..., Any]:
        return torch.compile(_entry(self._block, next(self._numbers)), **self._config)


class _CompiledBlock:
    """Calls a block with its forward pass compiled, and its hooks as they are."""

    def __init__(self, block: nn.Module, functions: _Functions, dynamic: DynamicDims | None, *, by_size: bool) -> None:
        self._block, self._functions, self._dynamic, self._by_size = block, functions, dynamic, by_size
        self._compiled: Callable[..., Any] | None = None
        self._constant = {size for tensor in (*block.parameters(), *block.buffers()) for size in tensor.shape}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._dynamic is not None and self._dynamic.dims:
            self._dynamic.mark_inputs((args, kwargs), self._constant, by_size=self._by_size)
        if self._compiled is None:
            self._compiled = self._functions.of(self._block)
        attributes, forward = vars(self._block), self._block.forward
        present = attributes.get("forward")  # that of activation checkpointing
        # Hooks in the compiled function would break its graph, and fully_shard's must run before it reads weights.
        attributes["forward"] = functools.partial(self._compiled, forward)
        try:
            return self._block._call_impl(*args, **kwargs)
        finally:
            if present is None:
                del attributes["forward"]
            else:
                attributes["forward"] = present


def _forward(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a forward pass; each group of blocks compiles a copy of this function."""
    return forward(*args, **kwargs)


def _entry(block: nn.Module, number: int) -> Callable[..., Any]:
    """Return a function that calls a forward pass, named after the class of a block.

    Compiled code, its limit of recompilations and the sizes that are found to be dynamic belong to a code object. Those
    of one group of blocks must not count for another, so each has its own. Compiling ``block.forward`` would not do
    that, and torch leaves the classes of ``torch.nn``, such as ``TransformerEncoderLayer``, out.
    """
    name = type(block).__name__
    name = f"{name if name.isidentifier() else 'block'}_{number}"
    return FunctionType(_forward.__code__.replace(co_name=name, co_qualname=name), _forward.__globals__, name)


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """Return what blocks must have in common to share a compiled function."""
    tensors = (*block.named_parameters(), *block.named_buffers())
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)
    return type(block), tuple(map(type, block.modules())), shapes


def _hooks_of_layers(block: nn.Module) -> list[Any]:
    """Return the hooks of the modules in a block, with None after those of each kind and module."""
    found: list[Any] = []
    for module in block.modules():
        if module is not block:
            for hooks in module_hooks(module):
                found += [*hooks, None]
    return found


def _with_limit(config: dict[str, Any], group: Sequence[nn.Module], *, by_size: bool) -> dict[str, Any]:
    """Return the configuration with a limit of recompilations that suits blocks with different attributes.

    A number that differs between blocks, such as a drop rate, is a constant of the compiled code. Beyond the limit
    torch runs the remaining blocks eagerly.
    """
    # For each block: training and evaluation, with constant and with dynamic sizes.
    return with_recompile_limit(config) if by_size else with_recompile_limit(config, 4 * len(group))
