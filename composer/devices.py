"""Devices: where a model trains, how tensors get there, and how its processes communicate."""

from __future__ import annotations

from abc import ABC
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
"""Types of devices from which a copy into pinned memory, and only into that, runs beside the host."""
SIDE_STREAMS = frozenset({"cuda"})
"""Types of devices to which batches are copied on a stream of their own, beside what is computed."""
TIMED = frozenset({"cuda", "xpu"})
"""Types of devices that work beside the host and whose events keep time."""
MEMORY_STATISTICS = frozenset({"cuda", "xpu"})
"""Types of devices whose allocator answers :func:`torch.accelerator.memory_allocated` and its kin."""

Module = TypeVar("Module", bound=nn.Module)


class Device(ABC):
    """Where a model trains. Subclasses set the attributes below; all methods follow from ``torch_device``.

    Attributes:
        name: Short name: ``cpu``, ``gpu``, ``mps``, ...
        dist_backend: Backend of ``torch.distributed`` for tensors on it; empty where there is none.
        torch_device: The device as PyTorch names it, with its index where there may be several.

    >>> DeviceCPU().tensor_to_device(torch.ones(1)).device
    device(type='cpu')
    """

    name: str
    dist_backend: str
    torch_device: torch.device

    _non_blocking = False

    def module_to_device(self, module: Module) -> Module:
        """Move a module's parameters and buffers here, in place, and return it.

        Args:
            module: Any module.

        >>> type(DeviceCPU().module_to_device(nn.Linear(1, 1))).__name__
        'Linear'
        """
        return module.to(self.torch_device)

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor here; itself if it is here already.

        From pinned memory to an accelerator the copy runs while the program goes on.

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
        """Return a batch with all tensors here; itself if they are here already.

        Containers of any nesting keep their kinds. Objects that are no containers move by their own ``to`` method if
        they have one; everything else stays.

        Args:
            batch: Tensors in mappings, sequences, named tuples and dataclasses.

        >>> batch = {"x": torch.ones(1), "name": "a"}
        >>> DeviceCPU().batch_to_device(batch) is batch
        True
        """
        return map_leaves(self._leaf_to_device, batch)

    def optimizer_to_device(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Move an optimizer's state here, in place, and return it.

        Step counters, and the product that ``NAdam`` keeps beside them, stay on the CPU unless the optimizer is
        capturable or fused, as PyTorch's optimizers require, or its class has ``step_on_device = True``.

        Args:
            optimizer: Any optimizer.

        >>> parameter = nn.Parameter(torch.ones(1))
        >>> type(DeviceCPU().optimizer_to_device(torch.optim.SGD([parameter]))).__name__
        'SGD'
        """
        map_device_values(optimizer, lambda value: map_tensors(self.tensor_to_device, value))
        return optimizer

    def _leaf_to_device(self, leaf: Any) -> Any:
        """Move what is no container, if it can move."""
        if isinstance(leaf, Tensor):
            return self.tensor_to_device(leaf)
        move = getattr(leaf, "to", None)
        return move(self.torch_device) if callable(move) and not isinstance(leaf, type) else leaf

    def __repr__(self) -> str:
        index = self.torch_device.index
        return f"{type(self).__name__}({'' if index is None else index})"  # pyright: ignore[reportUnnecessaryComparison]


class DeviceCPU(Device):
    """The CPU, with gloo between processes.

    >>> DeviceCPU().torch_device
    device(type='cpu')
    """

    name = "cpu"
    dist_backend = "gloo"
    torch_device = torch.device("cpu")

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor here; itself if it is here already.

        Args:
            tensor: Any shape and dtype. From an accelerator, the copy waits until it is complete.

        >>> DeviceCPU().tensor_to_device(torch.ones(1))
        tensor([1.])
        """
        # Ten times cheaper than `to`, and nearly always true.
        return tensor if tensor.is_cpu else tensor.to(self.torch_device)

    def batch_to_device(self, batch: Any) -> Any:
        """Return a batch with all tensors here; itself if they are here already, which is nearly free to find.

        Args:
            batch: As for :meth:`Device.batch_to_device`.

        >>> batch = torch.ones(1), torch.zeros(1)
        >>> DeviceCPU().batch_to_device(batch) is batch
        True
        """
        kind = type(batch)  # pyright: ignore[reportUnknownVariableType]
        if kind is tuple or kind is list or kind is dict:
            for leaf in batch.values() if kind is dict else batch:
                if type(leaf) is not Tensor or not leaf.is_cpu:
                    return map_leaves(self._leaf_to_device, batch)
            return batch
        return map_leaves(self._leaf_to_device, batch)


class DeviceAccelerator(Device):
    """Any accelerator that ``torch.accelerator`` knows and that has no class of its own here, such as ``xpu``.

    Args:
        kind: Its device type, as in ``torch.device(kind)``.
        device_id: Its index; ``None`` is this process's local rank, or 0 where it sees one only.

    Raises:
        ValueError: PyTorch sees none of this kind, or none of this index.

    >>> try:
    ...     DeviceAccelerator("xpu")
    ... except ValueError as error:
    ...     print(str(error)[:32])
    device 'xpu' is not available he
    """

    _non_blocking = True

    def __init__(self, kind: str, device_id: int | None = None) -> None:
        _require(kind, kind)
        self.name = kind
        # Empty where torch knows of none; such a device trains in a single process.
        known = torch.distributed.Backend.default_device_backend_map if dist.is_available() else {}
        self.dist_backend = known.get(kind, "")
        self.torch_device = torch.device(kind, checked_index(kind, device_id))
        torch.accelerator.set_device_index(self.torch_device)


class DeviceGPU(Device):
    """One CUDA or ROCm GPU, made the current one, with NCCL between processes.

    TensorFloat-32 is a setting of the whole process: constructing this calls ``torch.set_float32_matmul_precision`` and
    sets ``torch.backends.cudnn.allow_tf32`` and the ``fp32_precision`` of matrix products, convolutions and recurrent
    layers, so that whatever reads one of these, such as ``torch.compile``, finds the same.

    Args:
        device_id: Index of the GPU; ``None`` is this process's local rank, or 0 where it sees one GPU only.
        allow_tf32: Multiply float32 matrices with 10 bits of mantissa, several times faster; ``False`` uses all 23.

    Raises:
        ValueError: PyTorch sees no GPU, or none of this index.

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
        ValueError: PyTorch sees none.

    >>> device = DeviceMPS() if torch.backends.mps.is_available() else DeviceCPU()
    """

    name = "mps"
    dist_backend = ""
    torch_device = torch.device("mps")

    def __init__(self) -> None:
        _require("mps", self.name)


class DeviceTPU(Device):
    """A TPU, by the package torch_xla.

    Raises:
        MissingConditionalImportError: torch_xla is not installed.
    """

    name = "tpu"
    dist_backend = "xla"

    def __init__(self) -> None:
        self.torch_device = _xla_device("DeviceTPU")


class DeviceNeuron(Device):
    """An AWS Trainium or Inferentia chip, by the package torch_xla as torch-neuronx brings it.

    Raises:
        MissingConditionalImportError: torch_xla is not installed.
    """

    name = "neuron"
    dist_backend = "xla"

    def __init__(self) -> None:
        self.torch_device = _xla_device("DeviceNeuron")


class DeviceHPU(Device):
    """An Intel Gaudi accelerator, by the package habana-torch-plugin.

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
    """Return the device with a name.

    Args:
        device: ``cpu``, ``gpu`` (or ``cuda``), ``mps``, ``tpu``, ``neuron``, ``hpu`` or another accelerator that
            PyTorch knows, in any case; ``gpu:1`` for one of several; a ``torch.device``; a :class:`Device`, returned
            as it is; ``None`` or ``auto`` for the accelerator if there is one, else the CPU.

    Raises:
        TypeError: It is none of these types.
        ValueError: The name is unknown, or the device is not available on this machine.
        MissingConditionalImportError: The package that drives it is not installed.

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
    """A hint where only the number of a device was given."""
    return f" Did you mean 'gpu:{device}'?" if type(device) is int and device >= 0 else ""


def _available() -> str:
    """The names of the devices that can be used on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    names = ["cpu"] if accelerator is None else ["cpu", "gpu" if accelerator.type == "cuda" else accelerator.type]
    return ", ".join(repr(name) for name in names)


def _require(kind: str, name: str) -> None:
    """Refuse an accelerator that PyTorch does not see."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != kind:
        raise ValueError(
            f"device {name!r} is not available here: PyTorch {torch.__version__} sees none. Available: {_available()}. "
            "With device=None the best one available is used."
        )


def _set_tf32(allow: bool) -> None:
    """Set the precision of float32 arithmetic inside matrix products and convolutions.

    PyTorch has an older and a newer interface, and readers of the older one raise where only the newer one was used.
    Each setting is therefore made in both, the older first, since it resets parts of the newer one.
    """
    precision = "tf32" if allow else "ieee"
    torch.set_float32_matmul_precision("high" if allow else "highest")
    torch.backends.cudnn.allow_tf32 = allow
    backends: Any = torch.backends
    backends.cuda.matmul.fp32_precision = precision
    backends.cudnn.conv.fp32_precision = precision
    backends.cudnn.rnn.fp32_precision = precision


def _xla_device(purpose: str) -> torch.device:
    """The device of torch_xla."""
    xla: Any = import_extra("torch_xla", "tpu", purpose, install="torch_xla")
    return xla.device()
