"""Collect the environment for bug reports: library versions, GPUs, CPU and memory, launcher variables."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch

from composer import dist
from composer._cpus import cpu_quota, usable_cpus
from composer._env_variables import is_launcher_variable, is_public
from composer._secrets.masking import MASK, mask_error, mask_text
from composer._version import DISTRIBUTION, __version__

__all__ = [
    "collect_env",
    "configure_excepthook",
    "disable_env_report",
    "enable_env_report",
    "format_env",
    "get_composer_env_dict",
    "is_hpu_installed",
    "is_notebook",
    "is_xla_installed",
    "print_env",
    "processor_name",
]

# Extras for development of the package.
_NOT_FOR_USERS = ("all", "bench", "dev", "docs")

_report_enabled = True


def collect_env(extras: bool = True) -> dict[str, dict[str, Any]]:
    """Return the environment by sections: versions, accelerators, CPU and memory, launcher variables, extras.

    Environment variables are included if they are known to hold no secret, with passwords in URIs masked. Others with
    the prefixes of communication libraries (``NCCL_``, ``UCX_``, ...) are listed with the value ``***``.

    Args:
        extras: Whether to look for the packages of all extras.

    >>> report = collect_env()
    >>> report["versions"]["torch"] == torch.__version__
    True
    """
    return {
        "versions": _versions(),
        "accelerators": _accelerators(),
        "machine": {
            "system": platform.platform(),
            "processor": processor_name(),
            "cores": _cores(),
            "memory": _memory(),
        },
        "launcher": _launcher(),
        **({"extras": _extras()} if extras else {}),
    }


def format_env(report: dict[str, dict[str, Any]]) -> str:
    """Return a report as text.

    Args:
        report: From :func:`collect_env`.

    >>> print(format_env({"versions": {"composer": "1.0", "torch": "2.13.0"}, "launcher": {}}))
    versions
      composer  1.0
      torch     2.13.0
    launcher
      nothing
    """
    lines: list[str] = []
    for title, section in report.items():
        lines.append(title)
        width = max(map(len, section), default=0)
        lines += [f"  {name:<{width}}  {'none' if value is None else value}" for name, value in section.items()]
        if not section:
            lines.append("  nothing")
    return "\n".join(lines)


def print_env(file: TextIO | None = None) -> None:
    """Print the report.

    Args:
        file: The output stream; stdout by default.

    >>> print_env()
    versions
      composer ...
    """
    print(format_env(collect_env()), file=file)


def get_composer_env_dict() -> dict[str, Any]:
    """Return the main entries of the report as a flat dictionary, for example to save with a model.

    >>> get_composer_env_dict()["local_world_size"]
    1
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    named = accelerator is not None and accelerator.type == "cuda"
    return {
        "composer_version": __version__,
        "torch_version": torch.__version__,
        "host_processor_model_name": processor_name(),
        "host_processor_core_count": os.cpu_count(),
        "node_world_size": dist.get_world_size() // dist.get_local_world_size(),
        "local_world_size": dist.get_local_world_size(),
        "accelerator_model_name": torch.cuda.get_device_name() if named else accelerator and accelerator.type,
        "cuda_device_count": torch.cuda.device_count(),
    }


def configure_excepthook() -> None:
    """Install an exception hook that prints the report after the traceback of an uncaught exception.

    It is not installed by default. Ctrl-C and ``sys.exit`` print no report.

    >>> before = sys.excepthook
    >>> configure_excepthook()
    >>> sys.excepthook is before
    False
    >>> sys.excepthook = before
    """
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def report(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(error_type, mask_error(error), trace)
        if _report_enabled and issubclass(error_type, Exception):
            print_env(sys.stderr)

    sys.excepthook = report


def enable_env_report() -> None:
    """Enable the report of the hook of :func:`configure_excepthook` again.

    >>> enable_env_report()
    """
    global _report_enabled
    _report_enabled = True


def disable_env_report() -> None:
    """Disable the report of the hook of :func:`configure_excepthook`.

    >>> disable_env_report()
    >>> enable_env_report()
    """
    global _report_enabled
    _report_enabled = False


def is_notebook() -> bool:
    """Return whether the code runs in a notebook, such as Jupyter, Colab, Kaggle or VS Code.

    >>> is_notebook()
    False
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # Services such as Colab subclass the shell of ipykernel.
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(shell).__mro__)


def is_xla_installed() -> bool:
    """Return whether torch_xla is installed, which :class:`.DeviceTPU` and :class:`.DeviceNeuron` require.

    >>> is_xla_installed() == (importlib.util.find_spec("torch_xla") is not None)
    True
    """
    return importlib.util.find_spec("torch_xla") is not None


def is_hpu_installed() -> bool:
    """Return whether habana_frameworks is installed, which :class:`.DeviceHPU` requires.

    >>> is_hpu_installed() == (importlib.util.find_spec("habana_frameworks") is not None)
    True
    """
    return importlib.util.find_spec("habana_frameworks") is not None


def _launcher() -> dict[str, str]:
    """Return the launcher's environment variables, with values masked unless they are public."""
    names = sorted(filter(is_launcher_variable, os.environ))
    return {name: mask_text(os.environ[name]) if is_public(name) else MASK for name in names}


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "composer": __version__,
        "torch": torch.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "numpy": _version("numpy"),
        "torchmetrics": _version("torchmetrics"),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            from torch.cuda import nccl

            found["nccl"] = ".".join(map(str, nccl.version()))
    if torch.version.hip:
        found["hip"] = torch.version.hip
    return found


def _accelerators() -> dict[str, Any]:
    if not torch.accelerator.is_available():
        return {}
    accelerator = torch.accelerator.current_accelerator()
    device_type = "" if accelerator is None else accelerator.type
    found: dict[str, Any] = {}
    for index in range(torch.accelerator.device_count()):
        name = f"{device_type}:{index}"
        if device_type == "cuda":
            properties = torch.cuda.get_device_properties(index)
            capability = f"{properties.major}.{properties.minor}"
            found[name] = f"{properties.name}, {_gibibytes(properties.total_memory)}, compute capability {capability}"
        else:
            found[name] = device_type
    if device_type == "cuda" and (driver := _driver()):
        found["driver"] = driver
    return found


def _driver() -> str:
    """Return the version of the NVIDIA driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    versions = re.findall(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return versions[0] if versions else ""


def processor_name() -> str:
    """Return the name of the CPU.

    >>> processor_name() != ""
    True
    """
    try:
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        models = []
    return models[0] if models else platform.processor() or platform.machine()


def _cores() -> int | str:
    """Return the number of cores, and how many of them this process may use if fewer."""
    number, usable = os.cpu_count() or 1, len(usable_cpus())
    usable = min(usable, quota) if (quota := cpu_quota()) is not None else usable
    return number if usable >= number else f"{number}, of which {usable:g} may be used"


def _memory() -> str | None:
    try:
        return _gibibytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def _extras() -> dict[str, Any]:
    """Return the packages of each extra, with their versions."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from source
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        found = re.fullmatch(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w-]+)['\"].*", requirement)
        if found is not None and found[2] not in _NOT_FOR_USERS:
            extras.setdefault(found[2], []).append(f"{found[1]} {_version(found[1]) or 'missing'}")
    return {extra: ", ".join(packages) for extra, packages in sorted(extras.items())}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gibibytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
