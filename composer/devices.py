"""Devices (CPU, GPU, MPS, TPU, ...): move models, batches and optimizer states to them, and their dist backends."""

from __future__ import annotations

from abc import ABC
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from composer import dist
from composer._device_copies import is_non_blocking_safe
from composer._host_optimizer_state import map_device_values
from composer._lazy import import_extra
from composer._text import did_you_mean
from composer.dist.local_gpu import checked_index
from composer.trees import map_leaves, map_tensors

__all__ = [
    "MEMORY_STATISTICS",
    "PINNING",
    "SIDE_STREAMS",
    "TIMED",
    "Device",
    "DeviceAccelerator",
    "DeviceCPU",
    "DeviceGPU",
    "DeviceHPU",
    "DeviceMPS",
    "DeviceNeuron",
    "DeviceTPU",
    "get_device",
]

PINNING = frozenset({"cuda", "xpu"})
"""Device types from which a copy into pinned memory, and only into that, is asynchronous."""
SIDE_STREAMS = frozenset({"cuda"})
"""Device types to which batches are copied on a separate stream, in parallel with computation."""
TIMED = frozenset({"cuda", "xpu"})
"""Device types that run asynchronously to the host and have timing events."""
MEMORY_STATISTICS = frozenset({"cuda", "xpu"})
"""Device types that support :func:`torch.accelerator.memory_allocated` and related functions."""

Module = TypeVar("Module", bound=nn.Module)


class Device(ABC):
    """The device on which a model trains. Subclasses set the attributes below; all methods use ``torch_device``.

    Attributes:
        name: Short name: ``cpu``, ``gpu``, ``mps``, ...
        dist_backend: The ``torch.distributed`` backend for its tensors; empty if there is none.
        torch_device: The PyTorch device, with its index if there may be several.

    >>> DeviceCPU().tensor_to_device(torch.ones(1)).device
    device(type='cpu')
    """

    name: str
    dist_backend: str
    torch_device: torch.device

    _non_blocking = False

    @cached_property
    def has_side_streams(self) -> bool:
        """Whether batches are copied to the device on a separate stream; kept, since reading a device type is slow."""
        return self.torch_device.type in SIDE_STREAMS

    def module_to_device(self, module: Module) -> Module:
        """Move a module's parameters and buffers to the device, in place, and return it.

        Args:
            module: Any module.

        >>> type(DeviceCPU().module_to_device(nn.Linear(1, 1))).__name__
        'Linear'
        """
        return module.to(self.torch_device)

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; the same tensor if it is already there.

        Copies from pinned memory to an accelerator are non-blocking.

        Args:
            tensor: Any shape and dtype.

        >>> x = torch.ones(1)
        >>> DeviceCPU().tensor_to_device(x) is x
        True
        """
        return tensor.to(
            self.torch_device, non_blocking=self._non_blocking and is_non_blocking_safe(tensor, self.torch_device)
        )

    def batch_to_device(self, batch: Any) -> Any:
        """Return a batch with all tensors on the device; the same batch if they are already there.

        Nested containers keep their types. Other objects are moved with their ``to`` method if they have one, and are
        returned unchanged otherwise.

        Args:
            batch: Tensors in mappings, sequences, named tuples and dataclasses.

        >>> batch = {"x": torch.ones(1), "name": "a"}
        >>> DeviceCPU().batch_to_device(batch) is batch
        True
        """
        return map_leaves(self._leaf_to_device, batch)

    def optimizer_to_device(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Move an optimizer's state to the device, in place, and return the optimizer.

        Step counters, and the ``mu_product`` of ``NAdam``, stay on the CPU unless the optimizer is capturable or fused,
        as PyTorch's optimizers require, or its class has ``step_on_device = True``.

        Args:
            optimizer: Any optimizer.

        >>> parameter = nn.Parameter(torch.ones(1))
        >>> type(DeviceCPU().optimizer_to_device(torch.optim.SGD([parameter]))).__name__
        'SGD'
        """
        map_device_values(optimizer, lambda value: map_tensors(self.tensor_to_device, value))
        return optimizer

    def _leaf_to_device(self, leaf: Any) -> Any:
        """Move a leaf of a batch, if it has a ``to`` method."""
        if isinstance(leaf, Tensor):
            return self.tensor_to_device(leaf)
        move = getattr(leaf, "to", None)
        return move(self.torch_device) if callable(move) and not isinstance(leaf, type) else leaf

    def __repr__(self) -> str:
        index = self.torch_device.index
        return f"{type(self).__name__}({'' if index is None else index})"  # pyright: ignore[reportUnnecessaryComparison]


class DeviceCPU(Device):
    """The CPU, with the gloo backend.

    >>> DeviceCPU().torch_device
    device(type='cpu')
    """

    name = "cpu"
    dist_backend = "gloo"
    torch_device = torch.device("cpu")

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the CPU; the same tensor if it is already there.

        Args:
            tensor: Any shape and dtype. A copy from an accelerator is blocking.

        >>> DeviceCPU().tensor_to_device(torch.ones(1))
        tensor([1.])
        """
        # Ten times cheaper than `to`, and nearly always true.
        return tensor if tensor.is_cpu else tensor.to(self.torch_device)

    def batch_to_device(self, batch: Any) -> Any:
        """Return a batch with all tensors on the CPU; the same batch if they are already there, a cheap check.

        Args:
            batch: As for :meth:`Device.batch_to_device`.

        >>> batch = torch.ones(1), torch.zeros(1)
        >>> DeviceCPU().batch_to_device(batch) is batch
        True
        """
        device_type = type(batch)  # pyright: ignore[reportUnknownVariableType]
        if device_type is tuple or device_type is list or device_type is dict:
            for leaf in batch.values() if device_type is dict else batch:
                if type(leaf) is not Tensor or not leaf.is_cpu:
                    return map_leaves(self._leaf_to_device, batch)
            return batch
        return map_leaves(self._leaf_to_device, batch)


class DeviceAccelerator(Device):
    """Any accelerator supported by ``torch.accelerator`` without a separate class here, such as ``xpu``.

    Args:
        device_type: Its device type, as in ``torch.device(device_type)``.
        device_id: Its index; ``None`` is the local rank, or 0 if this process sees a single device.

    Raises:
        ValueError: PyTorch sees no device of this type, or none with this index.

    >>> try:
    ...     DeviceAccelerator("xpu")
    ... except ValueError as error:
    ...     print(str(error)[:32])
    device 'xpu' is not available he
    """

    _non_blocking = True

    def __init__(self, device_type: str, device_id: int | None = None) -> None:
        _require(device_type, device_type)
        self.name = device_type
        # Empty if torch has no backend for it; such a device trains in a single process.
        known = torch.distributed.Backend.default_device_backend_map if dist.is_available() else {}
        self.dist_backend = known.get(device_type, "")
        self.torch_device = torch.device(device_type, checked_index(device_type, device_id))
        torch.accelerator.set_device_index(self.torch_device)


class DeviceGPU(Device):
    """A CUDA or ROCm GPU, made the current device, with the NCCL backend.

    TensorFloat-32 is a global setting: the constructor calls ``torch.set_float32_matmul_precision`` and sets
    ``torch.backends.cudnn.allow_tf32`` and the ``fp32_precision`` of matrix products, convolutions and recurrent
    layers, so that all readers of these settings, such as ``torch.compile``, see the same value.

    Args:
        device_id: Index of the GPU; ``None`` is the local rank, or 0 if this process sees a single GPU.
        allow_tf32: Multiply float32 matrices with 10 bits of mantissa, several times faster; ``False`` uses all 23.

    Raises:
        ValueError: PyTorch sees no GPU, or none with this index.

    >>> device = get_device("gpu") if torch.cuda.is_available() else DeviceCPU()

    Paper: TF32, https://arxiv.org/abs/2203.03341
    """

    name = "gpu"
    dist_backend = "nccl"
    _non_blocking = True

    def __init__(self, device_id: int | None = None, *, allow_tf32: bool = True) -> None:
        _require("cuda", self.name)
        self.torch_device = torch.device("cuda", checked_index("cuda", device_id))
        torch.cuda.set_device(self.torch_device)
        _set_tf32(allow_tf32)


class DeviceMPS(Device):
    """The GPU of an Apple computer; for a single process.

    Raises:
        ValueError: PyTorch sees no MPS device.

    >>> device = DeviceMPS() if torch.backends.mps.is_available() else DeviceCPU()
    """

    name = "mps"
    dist_backend = ""
    torch_device = torch.device("mps")

    def __init__(self) -> None:
        _require("mps", self.name)


class DeviceTPU(Device):
    """A TPU, using torch_xla.

    Raises:
        MissingConditionalImportError: torch_xla is not installed.
    """

    name = "tpu"
    dist_backend = "xla"

    def __init__(self) -> None:
        self.torch_device = _xla_device("DeviceTPU")


class DeviceNeuron(Device):
    """An AWS Trainium or Inferentia chip, using the torch_xla that torch-neuronx installs.

    Raises:
        MissingConditionalImportError: torch_xla is not installed.
    """

    name = "neuron"
    dist_backend = "xla"

    def __init__(self) -> None:
        self.torch_device = _xla_device("DeviceNeuron")


class DeviceHPU(Device):
    """An Intel Gaudi accelerator, using habana-torch-plugin.

    Raises:
        MissingConditionalImportError: The package is not installed.
    """

    name = "hpu"
    dist_backend = "hccl"
    _non_blocking = True

    def __init__(self) -> None:
        import_extra("habana_frameworks.torch.core", "hpu", "DeviceHPU", install="habana-torch-plugin")
        self.torch_device = torch.device("hpu")


_CLASSES: dict[str, type[Device]] = {
    "cpu": DeviceCPU,
    "cuda": DeviceGPU,
    "gpu": DeviceGPU,
    "hpu": DeviceHPU,
    "mps": DeviceMPS,
    "neuron": DeviceNeuron,
    "tpu": DeviceTPU,
}


def get_device(device: str | torch.device | Device | None = None) -> Device:
    """Return the :class:`Device` for a name.

    Args:
        device: ``cpu``, ``gpu`` (or ``cuda``), ``mps``, ``tpu``, ``neuron``, ``hpu`` or another accelerator that
            PyTorch supports, in any case; ``gpu:1`` for one of several; a ``torch.device``; a :class:`Device`, returned
            unchanged; ``None`` or ``auto`` for the accelerator if there is one, else the CPU.

    Raises:
        TypeError: ``device`` has another type.
        ValueError: The name is unknown, or the device is not available on this host.
        MissingConditionalImportError: The package for the device is not installed.

    >>> get_device("CPU")
    DeviceCPU()
    """
    if isinstance(device, Device):
        return device
    if device is None or (isinstance(device, str) and device.strip().lower() == "auto"):
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    if not isinstance(device, (str, torch.device)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"device must be a name, a torch.device, a Device or None, but got {device!r} "
            f"of type {type(device).__name__}.{_numbered(device)}"
        )
    name, _, digits = str(device).strip().lower().partition(":")
    if digits and not digits.isdecimal():
        raise ValueError(f"device must look like 'gpu' or 'gpu:1', but got {device!r}.")
    index = int(digits) if digits else None
    if name in _CLASSES:
        return DeviceGPU(index) if name in ("gpu", "cuda") else _CLASSES[name]()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == name:
        return DeviceAccelerator(name, index)
    hint = did_you_mean(name, _CLASSES)
    raise ValueError(f"device {device!r} is not known.{hint} Available here: {_available()}.")


def _numbered(device: object) -> str:
    """Return a hint if only a device index was given."""
    return f" Did you mean 'gpu:{device}'?" if type(device) is int and device >= 0 else ""


def _available() -> str:
    """Return the names of the devices that are available on this host."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    names = ["cpu"] if accelerator is None else ["cpu", "gpu" if accelerator.type == "cuda" else accelerator.type]
    return ", ".join(repr(name) for name in names)


def _require(device_type: str, name: str) -> None:
    """Raise an error if PyTorch does not see an accelerator of this type."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device_type:
        raise ValueError(
            f"device {name!r} is not available here: PyTorch {torch.__version__} sees none. Available: {_available()}. "
            "Use device=None for the best one available."
        )


def _set_tf32(allow: bool) -> None:
    """Set the precision of float32 arithmetic inside matrix products and convolutions.

    PyTorch has an older and a newer API, and reads of the older one raise if only the newer one was used. So this sets
    both, the older first, since it resets some values of the newer one.
    """
    precision = "tf32" if allow else "ieee"
    torch.set_float32_matmul_precision("high" if allow else "highest")
    torch.backends.cudnn.allow_tf32 = allow
    backends: Any = torch.backends
    backends.cuda.matmul.fp32_precision = precision
    backends.cudnn.conv.fp32_precision = precision
    backends.cudnn.rnn.fp32_precision = precision


def _xla_device(purpose: str) -> torch.device:
    """Return the device of torch_xla."""
    xla: Any = import_extra("torch_xla", "tpu", purpose, install="torch_xla")
    return xla.device()
