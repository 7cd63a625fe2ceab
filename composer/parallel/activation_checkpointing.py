"""Activation checkpointing (recompute activations in the backward pass) and activation offloading to the CPU.

With n blocks of equal size, activation memory drops from n blocks to their inputs plus one block, for one extra forward
pass. Papers: Chen et al. 2016, https://arxiv.org/abs/1604.06174; selective, Korthikanti et al. 2022,
https://arxiv.org/abs/2205.05198
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from composer import trees
from composer.devices import PINNING
from composer.parallel.wrapping import model_policy, units_of

if TYPE_CHECKING:
    from composer.parallel.config import FSDPConfig

__all__ = ["apply_activation_checkpointing", "checkpoint_as_configured", "checkpointed_modules"]

HOST = torch.device("cpu")
"""Where offloaded activations are kept; a simulation of an accelerator on the CPU takes another device."""

_PLAIN = (Tensor, nn.Parameter)
_ALWAYS_SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def checkpointed_modules(model: nn.Module, every: int = 1) -> list[nn.Module]:
    """Return the modules to checkpoint.

    A model can select them with the attribute ``_activation_checkpointing`` of a module, or with a method
    ``activation_checkpointing_fn(module)`` of the model or one of its children. By default they are the units of
    :func:`.units_of`.

    Args:
        model: The model.
        every: Select every n-th module only, starting with the first.

    Raises:
        ValueError: The model selects no modules and has no repeated blocks.

    >>> blocks = [nn.TransformerEncoderLayer(4, 2, 4) for _ in range(3)]
    >>> len(checkpointed_modules(nn.Sequential(*blocks), every=2))
    2
    """
    policy = model_policy(model, "_activation_checkpointing", "activation_checkpointing_fn")
    if policy is None:
        chosen = [unit.module for unit in reversed(units_of(model))]
    else:
        chosen = [module for module in model.modules() if module is not model and policy(module)]
    if not chosen:
        raise ValueError(
            f"activation_checkpointing: {type(model).__name__} has no repeated blocks and does not select modules to "
            f"checkpoint. Set module._activation_checkpointing = True on some modules, or add a method "
            f"activation_checkpointing_fn(module) to the model."
        )
    return chosen[::every]


def apply_activation_checkpointing(
    modules: Sequence[nn.Module], *, selective: bool = False, offload: bool = False, checkpointing: bool = True
) -> None:
    """Checkpoint or offload the activations inside modules.

    Names, classes and hooks of the modules do not change. Gradients are the same, since the random state is restored
    for the recomputation.

    Args:
        modules: The modules.
        selective: Save the outputs of matrix products, convolutions and attention, which are the slowest to recompute.
        offload: Keep saved tensors in CPU memory until the backward pass.
        checkpointing: Recompute activations in the backward pass; False to only offload.

    >>> module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> apply_activation_checkpointing([module])
    >>> module(torch.ones(1, 2)).shape, list(module.state_dict())
    (torch.Size([1, 2]), ['0.weight', '0.bias'])

    Papers: https://arxiv.org/abs/1604.06174 (Chen et al. 2016), https://arxiv.org/abs/2205.05198 (Korthikanti et al.
    2022)
    """
    for module in modules:
        # Replace the attribute of this instance: its hooks, class and parameter names do not change.
        module.forward = _CheckpointedForward(
            module, module.forward, checkpointing=checkpointing, selective=selective, offload=offload
        )


class _OffloadToHost(saved_tensors_hooks):
    """Keeps tensors saved by autograd in CPU memory, except weights, which stay on the device anyway."""

    def __init__(self, module: nn.Module) -> None:
        # Compare storages, since a saved tensor is often a view, such as the transposed weight of a linear layer.
        # Weights of children that are separate FSDP units are unknown before these run, and are offloaded as well.
        unsharded = (one for one in (*module.parameters(), *module.buffers()) if type(one) in _PLAIN)
        weights = {_storage_address(tensor) for tensor in unsharded}

        def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
            is_plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
            if not is_plain or _storage_address(tensor) in weights:
                return tensor
            host = torch.empty_like(tensor, device=HOST, pin_memory=tensor.device.type in PINNING)
            return tensor.device, host.copy_(tensor, non_blocking=host.is_pinned())

        def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            device, host = packed
            return host.to(device, non_blocking=host.is_pinned())

        super().__init__(pack, unpack)


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _CheckpointedForward:
    """A forward method with activation checkpointing and offloading."""

    def __init__(self, module: nn.Module, forward: Any, *, checkpointing: bool, selective: bool, offload: bool) -> None:
        functools.update_wrapper(self, forward)
        self._module, self._forward = module, forward
        self._checkpointing, self._selective, self._offload = checkpointing, selective, offload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        if not self._offload:
            return self._run(*args, **kwargs)
        with _OffloadToHost(self._module):
            return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not self._checkpointing:
            return self._forward(*args, **kwargs)
        options: dict[str, Any] = {"use_reentrant": False}
        if self._selective:
            options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
        # Bind them, since checkpoint() would consume those named like its own arguments, such as "debug".
        forward = functools.partial(self._forward, **kwargs) if kwargs else self._forward
        marker = _device_marker(args, kwargs)
        if marker is None:
            return checkpoint(forward, *args, **options)
        return checkpoint(functools.partial(_call_without_first, forward), marker, *args, **options)


def _device_marker(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return an empty tensor on the accelerator, or None if torch can infer the device itself.

    torch infers the device from positional arguments only, and restores the random state and autocast of that device
    only: without the marker, ``block(hidden=x)`` would use a different dropout mask when it is recomputed.
    """
    if torch.compiler.is_compiling() or any(_is_on_accelerator(leaf) for leaf in tree_leaves(args)):
        return None
    found = next(filter(_is_on_accelerator, trees.leaves((args, kwargs))), None)
    return None if found is None else torch.empty(0, device=found.device)


def _is_on_accelerator(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type != "cpu"


def _call_without_first(forward: Any, first: Any, /, *args: Any) -> Any:
    return forward(*args)


def _policy(context: Any, operator: Any, /, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _ALWAYS_SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_as_configured(model: nn.Module, config: FSDPConfig) -> None:
    """Checkpoint or offload activations according to an FSDP configuration.

    Args:
        model: The model.
        config: Its ``activation_checkpointing`` and ``activation_cpu_offload`` are used.

    >>> from composer.parallel.config import FSDPConfig
    >>> blocks = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4), nn.TransformerEncoderLayer(4, 2, 4))
    >>> checkpoint_as_configured(blocks, FSDPConfig(activation_checkpointing=True))
    """
    chosen = config.activation_checkpointing
    every = chosen if isinstance(chosen, int) and not isinstance(chosen, bool) else 1
    apply_activation_checkpointing(
        checkpointed_modules(model, every),
        selective=chosen == "selective",
        offload=config.activation_cpu_offload,
        checkpointing=bool(chosen),
    )
