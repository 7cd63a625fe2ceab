"""What a report of a problem needs to say about the machine and the software."""

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
from composer._env_variables import is_of_launcher, is_public
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
]

# Extras that are for working on the package itself.
_NOT_FOR_USERS = ("all", "bench", "dev", "docs")

_report_enabled = True


def collect_env() -> dict[str, dict[str, Any]]:
    """Return what there is, by sections: versions, accelerators, processor and memory, launcher variables, extras.

    Of environment variables it has those that are known to hold no secret, with passwords in URIs masked. Others that
    begin like those of communication libraries (``NCCL_``, ``UCX_``, ...) are listed with ``***`` for their value.

    >>> report = collect_env()
    >>> report["versions"]["torch"] == torch.__version__
    True
    """
    return {
        "versions": _versions(),
        "accelerators": _accelerators(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": _cores(),
            "memory": _memory(),
        },
        "launcher": _launcher(),
        "extras": _extras(),
    }


def format_env(report: dict[str, dict[str, Any]]) -> str:
    """Return a report as text.

    Args:
        report: Of :func:`collect_env`.

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
        file: Where to; standard output by default.

    >>> print_env()
    versions
      composer ...
    """
    print(format_env(collect_env()), file=file)


def get_composer_env_dict() -> dict[str, Any]:
    """Return the main facts of the report as a flat dictionary, fit to be saved beside a model.

    >>> get_composer_env_dict()["local_world_size"]
    1
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    named = accelerator is not None and accelerator.type == "cuda"
    return {
        "composer_version": __version__,
        "torch_version": torch.__version__,
        "host_processor_model_name": _processor(),
        "host_processor_core_count": os.cpu_count(),
        "node_world_size": dist.get_world_size() // dist.get_local_world_size(),
        "local_world_size": dist.get_local_world_size(),
        "accelerator_model_name": torch.cuda.get_device_name() if named else accelerator and accelerator.type,
        "cuda_device_count": torch.cuda.device_count(),
    }


def configure_excepthook() -> None:
    """Have a program that ends by an exception print the report after its traceback.

    Nothing does so without this call. Ctrl-C and ``sys.exit`` print none.

    >>> before = sys.excepthook
    >>> configure_excepthook()
    >>> sys.excepthook is before
    False
    >>> sys.excepthook = before
    """
    before = sys.excepthook
    if getattr(before, "__module__", None) == __name__:
        return

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, mask_error(error), trace)
        if _report_enabled and issubclass(kind, Exception):
            print_env(sys.stderr)

    sys.excepthook = report


def enable_env_report() -> None:
    """Let the hook of :func:`configure_excepthook` print again.

    >>> enable_env_report()
    """
    global _report_enabled
    _report_enabled = True


def disable_env_report() -> None:
    """Keep the hook of :func:`configure_excepthook` from printing.

    >>> disable_env_report()
    >>> enable_env_report()
    """
    global _report_enabled
    _report_enabled = False


def is_notebook() -> bool:
    """Tell whether this is the cell of a notebook, as in Jupyter, Colab, Kaggle or VS Code.

    >>> is_notebook()
    False
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # Services such as Colab have a subclass of the shell of ipykernel.
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(shell).__mro__)


def is_xla_installed() -> bool:
    """Tell whether there is the package by which :class:`.DeviceTPU` and :class:`.DeviceNeuron` compute.

    >>> is_xla_installed() == (importlib.util.find_spec("torch_xla") is not None)
    True
    """
    return importlib.util.find_spec("torch_xla") is not None


def is_hpu_installed() -> bool:
    """Tell whether there is the package by which :class:`.DeviceHPU` computes.

    >>> is_hpu_installed() == (importlib.util.find_spec("habana_frameworks") is not None)
    True
    """
    return importlib.util.find_spec("habana_frameworks") is not None


def _launcher() -> dict[str, str]:
    """Environment variables, those with values that the report may show and those without."""
    names = sorted(filter(is_of_launcher, os.environ))
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
    kind = "" if accelerator is None else accelerator.type
    found: dict[str, Any] = {}
    for index in range(torch.accelerator.device_count()):
        name = f"{kind}:{index}"
        if kind == "cuda":
            properties = torch.cuda.get_device_properties(index)
            capability = f"{properties.major}.{properties.minor}"
            found[name] = f"{properties.name}, {_gibibytes(properties.total_memory)}, compute capability {capability}"
        else:
            found[name] = kind
    if kind == "cuda" and (driver := _driver()):
        found["driver"] = driver
    return found


def _driver() -> str:
    """Version of the NVIDIA driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    versions = re.findall(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return versions[0] if versions else ""


def _processor() -> str:
    try:
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        models = []
    return models[0] if models else platform.processor() or platform.machine()


def _cores() -> int | str:
    """The number of cores, and how many of them this process may use where these are fewer."""
    number, usable = os.cpu_count() or 1, len(usable_cpus())
    usable = min(usable, quota) if (quota := cpu_quota()) is not None else usable
    return number if usable >= number else f"{number}, of which {usable:g} may be used"


def _memory() -> str | None:
    try:
        return _gibibytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def _extras() -> dict[str, Any]:
    """Extra -> its packages with their versions."""
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in wanted:
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
