"""Device queries of PyTorch and composer, answered for the fake accelerator of ``tests/accelerator.py``.

The device is ``lazy``: of the device types that every build of torch knows, the one whose backward pass runs in the
calling thread and that has no kernels of its own that would be called in place of these.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._lazy.ts_backend
import torch.distributed as torch_dist
from torch import nn

from composer import _device_copies, devices
from composer.callbacks import _async_readback, memory_monitor
from composer.checkpoint import host_memory
from composer.devices import Device
from composer.parallel import activation_checkpointing

DEVICE = torch.device("lazy", 0)


class FakeDevice(Device):
    """The pretend accelerator as composer's device."""

    name, dist_backend, torch_device, _non_blocking = "fake", "gloo", DEVICE, True

    def module_to_device(self, module: Any) -> Any:
        # Keeps the parameters what they are to the optimizers, as CUDA does and devices of other memory do not.
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return super().module_to_device(module)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)


class _Event:
    """As torch.Event; everything queued has run whenever somebody looks."""

    note: Callable[[str], None]

    def __init__(self, device: Any = None, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.note("synchronize an event")


class _Module:
    """What ``torch.cuda`` is to CUDA. Random numbers are sampled by the generator of the CPU."""

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        pass


def tell(patch: pytest.MonkeyPatch, kind: type[Any], note: Callable[[str], None]) -> None:
    """Let the device be the accelerator of this machine.

    Args:
        patch: Undone, there is no such device.
        kind: The class of its tensors.
        note: Called with what the host waits for.
    """
    _start_lazy_backend()
    for module, name in ((torch, "autocast"), (torch, "is_autocast_enabled"), (torch, "get_autocast_dtype")):
        patch.setattr(module, name, _of_cpu(getattr(module, name)))
    patch.setattr(nn.functional, "one_hot", _one_hot(kind, nn.functional.one_hot))
    for name, value in {
        "current_accelerator": lambda check_available=False: torch.device(DEVICE.type),
        "is_available": lambda: True,
        "memory_stats": lambda device=None: dict.fromkeys(memory_monitor._ACCELERATOR, 1),
        "synchronize": lambda device=None: note("synchronize"),
    }.items():
        patch.setattr(torch.accelerator, name, value)
    config_of = torch_dist.get_backend_config
    patch.setattr(torch_dist, "get_backend_config", lambda group=None: f"{config_of(group)},{DEVICE.type}:gloo")
    patch.setattr(_Event, "note", staticmethod(note), raising=False)
    patch.setattr(torch, "Event", _Event)
    for module in (devices, activation_checkpointing, host_memory, _async_readback):
        patch.setattr(module, "PINNING", devices.PINNING | {DEVICE.type})
    for module in (devices, _device_copies):
        patch.setattr(module, "is_non_blocking_safe", _is_non_blocking_safe)
    patch.setattr(torch, DEVICE.type, _Module, raising=False)
    patch.setitem(devices._CLASSES, DEVICE.type, FakeDevice)
    _as_on_cuda(patch, kind)


def _is_non_blocking_safe(
    tensor: torch.Tensor,
    device: torch.device,
    safe: Callable[[torch.Tensor, torch.device], bool] = _device_copies.is_non_blocking_safe,
) -> bool:
    """As to CUDA."""
    return safe(tensor, torch.device("cuda") if device.type == DEVICE.type else device)


@functools.cache
def _start_lazy_backend() -> None:
    torch._lazy.ts_backend.init()


def _as_on_cuda(patch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    """Let optimizers take the forms that they take for tensors on CUDA."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    from composer.optim import _decoupled

    for module in (optimizer, _foreach_utils):
        for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
            if hasattr(module, name):
                devices_of = getattr(module, name)
                patch.setattr(module, name, lambda devices_of=devices_of: [*devices_of(), DEVICE.type])
    for module in [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
        if devices_of := getattr(module, "_get_capturable_supported_devices", None):
            patch.setattr(
                module,
                "_get_capturable_supported_devices",
                lambda *args, devices_of=devices_of, **more: [*devices_of(*args, **more), DEVICE.type],
            )
    patch.setattr(optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, kind])
    patch.setattr(_decoupled, "_PLAIN", (*_decoupled._PLAIN, kind))
    patch.setattr(_decoupled, "_FUSED", type(_decoupled._FUSED)([*_decoupled._FUSED, DEVICE.type]))


def _of_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Autocast of the device is that of the CPU, which does nothing to tensors of the device."""

    def of_cpu(device_type: Any = None, *args: Any, **kwargs: Any) -> Any:
        return function("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)

    return of_cpu if not isinstance(function, type) else functools.wraps(function, updated=())(of_cpu)


def _one_hot(kind: type[Any], function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """On CUDA the values are not checked on the host if the number of classes is given."""

    def one_hot(tensor: Any, num_classes: int = -1) -> torch.Tensor:
        if num_classes == -1 or not isinstance(tensor, kind):
            return function(tensor, num_classes)
        return kind(function(tensor.values, num_classes))

    return one_hot
