"""Activations that are not kept for the backward pass: computed again, or kept in the memory of the host.

With n blocks of one size, the memory for activations falls from n blocks to their inputs and one block, for one more
forward pass. Papers: Chen et al. 2016, https://arxiv.org/abs/1604.06174; selective, Korthikanti et al. 2022,
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
from composer.parallel.wrapping import said_by_model, units_of

if TYPE_CHECKING:
    from composer.parallel.config import FSDPConfig

__all__ = ["checkpoint_as_configured", "checkpointed_modules", "recompute"]

_PLAIN = (Tensor, nn.Parameter)
_KEPT = {
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
    """Return the modules whose activations are not kept.

    The model may say it: a module by its attribute ``_activation_checkpointing``, or the model or a child of it by a
    method ``activation_checkpointing_fn(module)``. Else they are the units of :func:`.units_of`.

    Args:
        model: The model.
        every: Takes only each so many of them, the first included.

    Raises:
        ValueError: The model says nothing, and has no repeated blocks.

    >>> blocks = [nn.TransformerEncoderLayer(4, 2, 4) for _ in range(3)]
    >>> len(checkpointed_modules(nn.Sequential(*blocks), every=2))
    2
    """
    said = said_by_model(model, "_activation_checkpointing", "activation_checkpointing_fn")
    if said is None:
        chosen = [unit.module for unit in reversed(units_of(model))]
    else:
        chosen = [module for module in model.modules() if module is not model and said(module)]
    if not chosen:
        raise ValueError(
            f"activation_checkpointing: {type(model).__name__} has no repeated blocks and does not say which modules "
            f"to recompute. Set module._activation_checkpointing = True on some, or give the model a method "
            f"activation_checkpointing_fn(module)."
        )
    return chosen[::every]


def recompute(
    modules: Sequence[nn.Module], *, selective: bool = False, offload: bool = False, drop: bool = True
) -> None:
    """Let modules not keep the activations inside them.

    The modules stay what they are: their names, their classes and their hooks. Gradients are the same, since random
    numbers are drawn again as they were.

    Args:
        modules: The modules.
        selective: Whether the outputs of matrix products, convolutions and attention are kept all the same, which take
            longest to compute.
        offload: Whether what is kept waits in the memory of the host.
        drop: Whether activations are computed again at all.

    >>> module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> recompute([module])
    >>> module(torch.ones(1, 2)).shape, list(module.state_dict())
    (torch.Size([1, 2]), ['0.weight', '0.bias'])

    Papers: https://arxiv.org/abs/1604.06174 (Chen et al. 2016), https://arxiv.org/abs/2205.05198 (Korthikanti et al.
    2022)
    """
    for module in modules:
        # An attribute of this one module: hooks stay around it, and it keeps its class and the names of its weights.
        module.forward = _Sparing(module, module.forward, drop=drop, selective=selective, offload=offload)


class _Offloaded(saved_tensors_hooks):
    """What autograd saves waits in the memory of the host, but for weights, which are on the device in any case."""

    def __init__(self, module: nn.Module) -> None:
        # Their memory, since what is saved is often a view, such as the transposed weight of a linear layer.
        # Those of children that are sharded by themselves are not known before these run, and wait as all else does.
        whole = (one for one in (*module.parameters(), *module.buffers()) if type(one) in _PLAIN)
        weights = {_address(tensor) for tensor in whole}

        def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
            is_plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
            if not is_plain or _address(tensor) in weights:
                return tensor
            host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type in PINNING)
            return tensor.device, host.copy_(tensor, non_blocking=host.is_pinned())

        def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            device, host = packed
            return host.to(device, non_blocking=host.is_pinned())

        super().__init__(pack, unpack)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Sparing:
    """A forward pass that does not keep its activations."""

    def __init__(self, module: nn.Module, forward: Any, *, drop: bool, selective: bool, offload: bool) -> None:
        functools.update_wrapper(self, forward)
        self._module, self._forward = module, forward
        self._drop, self._selective, self._offload = drop, selective, offload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        if not self._offload:
            return self._run(*args, **kwargs)
        with _Offloaded(self._module):
            return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not self._drop:
            return self._forward(*args, **kwargs)
        options: dict[str, Any] = {"use_reentrant": False}
        if self._selective:
            options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
        # Bound, since torch's function would take those of its own names for itself, such as "debug".
        forward = functools.partial(self._forward, **kwargs) if kwargs else self._forward
        sign = _device_marker(args, kwargs)
        if sign is None:
            return checkpoint(forward, *args, **options)
        return checkpoint(functools.partial(_without_first, forward), sign, *args, **options)


def _device_marker(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """An empty tensor on the accelerator, where torch would not find out which one a module computes on.

    It looks at positional arguments, and restores the random numbers and autocast of no other device: a block that is
    called as ``block(hidden=x)`` would drop other elements when it is computed again.
    """
    if torch.compiler.is_compiling() or any(_is_on_accelerator(leaf) for leaf in tree_leaves(args)):
        return None
    found = next(filter(_is_on_accelerator, trees.leaves((args, kwargs))), None)
    return None if found is None else torch.empty(0, device=found.device)


def _is_on_accelerator(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type != "cpu"


def _without_first(forward: Any, first: Any, /, *args: Any) -> Any:
    return forward(*args)


def _policy(context: Any, operator: Any, /, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_as_configured(model: nn.Module, config: FSDPConfig) -> None:
    """Checkpoint or offload activations as a configuration of FSDP says.

    Args:
        model: The model.
        config: Its ``activation_checkpointing`` and ``activation_cpu_offload`` are followed.

    >>> from composer.parallel.config import FSDPConfig
    >>> blocks = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4), nn.TransformerEncoderLayer(4, 2, 4))
    >>> checkpoint_as_configured(blocks, FSDPConfig(activation_checkpointing=True))
    """
    chosen = config.activation_checkpointing
    every = chosen if isinstance(chosen, int) and not isinstance(chosen, bool) else 1
    recompute(
        checkpointed_modules(model, every),
        selective=chosen == "selective",
        offload=config.activation_cpu_offload,
        drop=bool(chosen),
    )
