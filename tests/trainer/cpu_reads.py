"""Reads of tensors on the CPU, for runs of several processes, whose collectives take no pretend accelerator.

``tests/accelerator.py`` sees more; what can run on it, does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from composer.core import first_draws

READING_OPERATORS = {
    "aten::_local_scalar_dense",  # item, float, int, bool, and indexing by a tensor on the device
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",  # also behind masks as indices: the size of the result must be known
    "aten::masked_select",
    "aten::_unique2",
    "aten::allclose",
}
READING_METHODS = ("item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__")


class Reads(TorchDispatchMode):
    """Notes each read of a tensor's values by the host, with the step in which it happens.

    Operators that must wait for the device are caught where they are dispatched. On the CPU some methods read memory
    without dispatching anything, so these are caught by name. What only happens on the CPU would be a read on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step: int | None = None
        self.found: list[tuple[int, str]] = []

    def note(self, what: str) -> None:
        if self.step is not None:
            self.found.append((self.step, what))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().partition(".")[0]
        masks = name in ("aten::index", "aten::index_put_", "aten::index_put") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in READING_OPERATORS or masks:
            self.note(name)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def watched(monkeypatch) -> Iterator[Reads]:
    """Watch for reads of tensors inside the block."""
    reads = Reads()

    def noting(name: str, original: Any) -> Any:
        def method(self, *args, **kwargs):
            reads.note(f"Tensor.{name}")
            return original(self, *args, **kwargs)

        return method

    def compared(*states: Any) -> bool:
        """States of generators, which lie on the host, whatever device the generator is for."""
        step, reads.step = reads.step, None
        try:
            return are_same(*states)
        finally:
            reads.step = step

    are_same = first_draws._are_same
    with monkeypatch.context() as patch, reads:
        patch.setattr(first_draws, "_are_same", compared)
        for name in READING_METHODS:
            patch.setattr(torch.Tensor, name, noting(name, getattr(torch.Tensor, name)))
        yield reads
