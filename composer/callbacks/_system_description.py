"""System description of an MLPerf submission: processors, memory, accelerators and software of this host."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from composer import dist
from composer._numbers import whole_number
from composer._text import one_of
from composer._version import __version__
from composer.dist.local_gpu import local_gpu

__all__ = ["DIVISIONS", "STATUSES", "get_system_description"]

DIVISIONS = ("open", "closed")
STATUSES = ("onprem", "cloud", "preview")


def get_system_description(
    submitter: str,
    division: str,
    status: str,
    system_name: str | None = None,
    host_processors_per_node: int | None = None,
) -> dict[str, str]:
    """Return the system description of an MLPerf submission, filled in from what can be detected on this host.

    Fields that software cannot detect, such as cooling and interconnects, are empty and must be filled in before a
    submission.

    Args:
        submitter: The submitting organization.
        division: "open" or "closed".
        status: "onprem", "cloud" or "preview".
        system_name: Name of the system; by default derived from the number and type of accelerators or processors.
        host_processors_per_node: Number of processors (sockets) per node; by default counted.

    Raises:
        ValueError: The division or the status is unknown.

    >>> description = get_system_description("me", "open", "onprem", system_name="box")
    >>> description["system_name"], description["division"], description["number_of_nodes"]
    ('box', 'open', '1')
    """
    one_of("division", division, DIVISIONS)
    one_of("status", status, STATUSES)
    cpu = _processor()
    sockets = cpu["sockets"]
    if host_processors_per_node is not None:
        sockets = whole_number("host_processors_per_node", host_processors_per_node, minimum=1)
    accelerator, memory = _accelerator()
    per_node = dist.get_local_world_size() if accelerator else 0
    name = system_name or (f"{dist.get_world_size()}x{accelerator}" if accelerator else f"{sockets}x{cpu['model']}")
    return {
        "submitter": submitter,
        "division": division,
        "status": status,
        "system_name": name,
        "number_of_nodes": str(dist.get_world_size() // dist.get_local_world_size()),
        "host_processors_per_node": str(sockets),
        "host_processor_model_name": cpu["model"],
        "host_processor_core_count": str(cpu["cores"]),
        "host_processor_vcpu_count": str(os.cpu_count() or ""),
        "host_processor_frequency": "",
        "host_processor_caches": "",
        "host_processor_interconnect": "",
        "host_memory_capacity": _host_memory(),
        "host_storage_type": "",
        "host_storage_capacity": _gigabytes(shutil.disk_usage("/").total),
        "host_networking": "",
        "host_networking_topology": "",
        "host_memory_configuration": "",
        "accelerators_per_node": str(per_node),
        "accelerator_model_name": accelerator,
        "accelerator_host_interconnect": "",
        "accelerator_frequency": "",
        "accelerator_on-chip_memories": "",
        "accelerator_memory_configuration": "",
        "accelerator_memory_capacity": memory,
        "accelerator_interconnect": "",
        "accelerator_interconnect_topology": "",
        "cooling": "",
        "hw_notes": "",
        "framework": f"PyTorch {torch.__version__}, composer {__version__}",
        "other_software_stack": _software(),
        "operating_system": platform.platform(),
        "sw_notes": "",
    }


def _processor() -> dict[str, Any]:
    """Return the model, the number of sockets and the number of cores per socket."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    sockets = len(set(re.findall(r"^physical id\s*:\s*(\d+)", text, re.MULTILINE))) or 1
    cores = re.findall(r"^cpu cores\s*:\s*(\d+)", text, re.MULTILINE)
    model = models[0] if models else platform.processor() or platform.machine()
    return {"model": model, "sockets": sockets, "cores": int(cores[0]) if cores else ""}


def _host_memory() -> str:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return _gigabytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return ""


def _accelerator() -> tuple[str, str]:
    """Return the model and memory of the accelerator, empty without one."""
    if not torch.cuda.is_available():
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return ("" if device is None else device.type), ""
    properties = torch.cuda.get_device_properties(local_gpu() % torch.cuda.device_count())
    return properties.name, _gigabytes(properties.total_memory)


def _software() -> str:
    versions = [f"Python {platform.python_version()}"]
    if torch.version.cuda:
        versions += [f"CUDA {torch.version.cuda}", f"cuDNN {torch.backends.cudnn.version()}"]
    return ", ".join(versions)


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
