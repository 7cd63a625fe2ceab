"""Features that older releases of torch lack, and warnings that torch raises in its own code."""

from __future__ import annotations

import dataclasses
import sys
import warnings

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.launcher.api import LaunchConfig

HAS_UNUSED_PARAMETERS = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
"""Whether sharded parameters may lack a gradient in some steps (2.13)."""
HAS_GRACE_PERIOD = "shutdown_timeout" in {field.name for field in dataclasses.fields(LaunchConfig)}
"""Whether the launcher accepts a grace period after a signal."""

_MESSAGES = {
    # Of torch.distributed.checkpoint, when it saves.
    "TypedStorage is deprecated": (2, 11),
    # Of torch.export.load.
    "The given buffer is not writable": (2, 12),
}


def messages() -> list[tuple[str, type[Warning]]]:
    """How the warnings begin that this release has and later ones have not, of torch or of Python, and their kinds."""
    found: list[tuple[str, type[Warning]]] = [
        (message, UserWarning) for message, mended in _MESSAGES.items() if torch.__version__ < mended
    ]
    if sys.version_info[:3] == (3, 13, 0):
        found.append(("Guards may run slower on Python 3.13.0", RuntimeWarning))
    return found


def ignore() -> None:
    """Ignore them in this process, until the filters are set back."""
    for message, kind in messages():
        warnings.filterwarnings("ignore", message, kind)
