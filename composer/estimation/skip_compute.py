"""Run a training step without its computation: every tensor gets its shape and memory, and no values.

The parameters of the model are declared to have no values, and so has everything that is computed from them. Operators
with such inputs are not run: their outputs are allocated with the shapes that the operator's fake implementation gives,
and never written, so that the system assigns no physical memory to large ones. Tensors with values, such as batches and
masks, are computed as always. Since all tensors are ordinary ones, autograd, autocast, activation checkpointing, DDP
and FSDP work as in training.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from composer.estimation.communication import Temporary, communication_noted, copy_in, is_copy_in, is_fsdp_copy
from composer.estimation.gradient_sums import GradientSums
from composer.estimation.placeholders import placeholder
from composer.estimation.sequence_lengths import packed_sequence, with_known_lengths
from composer.memory.allocations import AllocationLog, local_tensors
from composer.memory.unknown_shapes import assumed_value, largest_outputs

__all__ = ["SkipCompute", "skip_compute"]

aten = torch.ops.aten

# Operators that only rearrange memory, though their schemas do not say that the output is a view.
_RUN = frozenset(
    {
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
        aten.lift_fresh.default,
        aten.is_pinned.default,
        aten.resize_.default,
        aten.set_.default,
        aten.set_.source_Tensor,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
    }
)
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_ITEM = aten._local_scalar_dense.default
_IS_LEFT_ALIGNED = aten._nested_tensor_from_mask_left_aligned.default
_PACK = aten._pack_padded_sequence.default
_SPARSE = frozenset({aten._sparse_coo_tensor_with_dims_and_tensors, aten._to_sparse, aten._coalesce, aten.sparse_mask})
_DENSE = "Estimate the program with dense ones, such as nn.Embedding(sparse=False), which need more memory."
# Factories of tensors with more elements are not run: they would write to the memory.
_LARGE = 2**20

Observer = Callable[[Any, Sequence[Any], dict[str, Any], Any], None]


class SkipCompute(TorchDispatchMode):
    """Runs operators without computing where inputs have no values, and notes the memory of all tensors in a log.

    Args:
        log: Gets the memory of every tensor that an operator returns.
        temporary: ``temporary(operator, inputs, outputs)`` returns the bytes that a kernel allocates while it runs; for
            a collective between simulated ranks, the operator is its name.
        observe: ``observe(operator, args, kwargs, outputs)`` is called after each operator.

    >>> model = torch.nn.Linear(1024, 1024, bias=False)
    >>> with skip_compute(AllocationLog(), model.parameters()) as mode:
    ...     model(torch.ones(1, 1024)).sum().backward()
    >>> model.weight.grad.shape, mode.has_values(model.weight.grad)
    (torch.Size([1024, 1024]), False)
    """

    def __init__(self, log: AllocationLog, temporary: Temporary | None = None, observe: Observer | None = None) -> None:
        super().__init__()
        self.log = log
        self._temporary, self._observe = temporary, observe
        self._without_values: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._fake = FakeTensorMode()
        self._sums = GradientSums()
        # Models repeat their layers, so that most calls have the shapes of an earlier one.
        self._known: dict[Any, tuple[list[Any], Any]] = {}

    def omit_values(self, tensors: Iterable[Any]) -> None:
        """Declare that tensors have no values, and note their memory.

        Args:
            tensors: Tensors, or nested structures of them.
        """
        for local in itertools.chain.from_iterable(map(local_tensors, tensors)):
            self._without_values.add(local.untyped_storage())
            self.log.add(local)

    def has_values(self, tensor: Tensor) -> bool:
        """Return whether a tensor was computed.

        Args:
            tensor: The tensor.
        """
        return not any(local.untyped_storage() in self._without_values for local in local_tensors(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(_FAKE) is not None:  # of DTensor, which asks for shapes
            return func(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(hasattr(each, "__tensor_flatten__") for each in inputs):
            return NotImplemented  # a DTensor calls the operators of its parts
        known = all(self._is_known(each) for each in inputs)
        if func is _ITEM and not known:
            return assumed_value(inputs[0].dtype)
        if func is _IS_LEFT_ALIGNED:  # padding stays, rather than become a nested tensor: the most memory
            return False
        if not known and func.overloadpacket in _SPARSE:
            raise NotImplementedError(f"composer estimate cannot estimate sparse tensors ({func}). {_DENSE}")
        if func in _RUN or _is_view(func) or (known and not _is_large(func, args)):
            outputs = func(*args, **kwargs)
            # A view of memory that is not in the log, such as a data set on the host, allocates nothing.
            if not _is_view(func) or any(map(self.log.knows, inputs)):
                for local in local_tensors(outputs):
                    self.log.add(local)
        elif func.namespace == "c10d":  # of a process group that is not simulated
            outputs = func(*args, **kwargs)
            self.omit_values([outputs])
        elif func.namespace == "_c10d_functional" and func._opname == "wait_tensor":
            outputs = args[0]
        elif self._sums.is_in_place(func, inputs):
            outputs = inputs[0]
        elif func is _PACK:
            outputs = packed_sequence(*args, are_known=self._is_known(args[1]))
            self.omit_values(outputs[:1])
        elif is_copy_in(func):
            self.omit_values([args[1]])
            outputs = copy_in(*args, **kwargs)
        else:
            outputs = self._skip(func, args, kwargs)
            if is_fsdp_copy(func):
                self.log.add_roles([kwargs["out"]], "communication")
        self._sums.note(outputs)
        if self._temporary is not None and inputs:
            self.log.add_temporary(self._temporary(func, inputs, list(local_tensors(outputs))))
        if self._observe is not None:
            self._observe(func, args, kwargs, outputs)
        return outputs

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.device.type != "meta" and tensor.untyped_storage() not in self._without_values

    def _skip(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the outputs of an operator without running it."""
        written = [
            args[i] if i < len(args) else kwargs.get(argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.omit_values(written)
        returned = func._schema.returns
        if written and all(each.alias_info is not None for each in returned):
            return written[0] if len(returned) == 1 else tuple(written) if returned else None
        leaves, spec = self._shapes(func, args, kwargs)
        outputs = [placeholder(*leaf.args) if isinstance(leaf, _Shape) else leaf for leaf in leaves]
        self.omit_values(outputs)
        return tree_unflatten(outputs, spec)

    def _shapes(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Return the outputs of an operator, with shapes in place of tensors, and their structure."""
        if func is aten.index.Tensor:
            args = [args[0], [each for index in args[1] for each in self._positions(index)]]
        args = with_known_lengths(func, args, self._is_known)
        flat, spec = tree_flatten((args, kwargs))
        given = tuple(_Shape(leaf) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in flat)
        try:
            key: Any = (func, spec, given)
            hash(key)
        except TypeError:  # an argument such as a generator
            key = None
        if key is not None and key in self._known:
            return self._known[key]
        with self._fake:
            fake = [placeholder(*leaf.args) if isinstance(leaf, _Shape) else leaf[1] for leaf in given]
            fake_args, fake_kwargs = tree_unflatten(fake, spec)
            outputs = largest_outputs(func, fake_args, fake_kwargs)
            if outputs is None:
                outputs = func(*fake_args, **fake_kwargs)
        leaves, structure = tree_flatten(outputs)
        found = [_Shape(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure
        if key is not None:
            self._known[key] = found
        return found

    def _positions(self, index: Tensor | None) -> Sequence[Tensor | None]:
        """Return the positions of a mask with known values, for each of its dimensions; any other index as it is."""
        if index is None or index.dtype != torch.bool or index.ndim == 0 or not self._is_known(index):
            return [index]
        return index.nonzero().unbind(1)


class _Shape:
    """Size, strides and data type of a tensor; hashable."""

    __slots__ = ("args",)

    def __init__(self, tensor: Tensor) -> None:
        self.args = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def __hash__(self) -> int:
        return hash(self.args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self.args == other.args


def _is_view(func: Any) -> bool:
    """Return whether the outputs of an operator are views of its inputs, or its input with another shape."""
    if torch.Tag.inplace_view in func.tags:  # such as transpose_
        return True
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)


def _is_large(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator creates a large tensor from nothing, as ``torch.randn`` does."""
    size = args[0] if args else None
    if not isinstance(size, list | tuple | torch.Size) or not all(isinstance(n, int) for n in size):
        return False
    return torch.Size(size).numel() > _LARGE


@contextmanager
def skip_compute(
    log: AllocationLog,
    without_values: Iterable[Any],
    temporary: Temporary | None = None,
    observe: Observer | None = None,
) -> Generator[SkipCompute]:
    """Run everything in a ``with`` block without computation.

    Args:
        log: Gets the memory of all tensors.
        without_values: The parameters and buffers of the model.
        temporary: As for :class:`SkipCompute`.
        observe: As for :class:`SkipCompute`.

    >>> with skip_compute(AllocationLog(), []):
    ...     (torch.ones(2) + 1).sum().item()  # no tensor is without values
    4.0
    """
    mode = SkipCompute(log, temporary, observe)
    mode.omit_values(without_values)
    del without_values  # sharding frees them
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        log.resized(storage)

    # FSDP frees parameters by resizing their storage, which no operator tells.
    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]
    try:
        with mode, communication_noted(log, temporary):
            yield mode
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
