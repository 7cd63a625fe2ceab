"""When this process started, from ``/proc`` on Linux, else from the import of this module."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

__all__ = ["claim_start", "process_age", "process_name"]

_imported = time.perf_counter()
# The process in which a trainer has accounted for the time since the start of the process.
_claimed_by: int | None = None


def process_age() -> float:
    """Return the seconds since this process started; since the import of this module if the system does not say.

    Linux gives the start in clock ticks since boot (``/proc/self/stat``), so the resolution is 10 ms.

    >>> 0 < process_age() < 1e9
    True
    """
    since_import, ticks = time.perf_counter() - _imported, _start_ticks()
    if ticks is None:
        return since_import
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    # Some sandboxes count from another boot.
    return age if 0 <= age <= since_boot else since_import


def process_name() -> str:
    """Return a text that identifies this process, also among those of other hosts, or with the same number later.

    >>> process_name() == process_name()
    True
    """
    ticks = _start_ticks()
    return f"{platform.node()}:{os.getpid()}:{round(_imported, 2) if ticks is None else ticks}"


def claim_start() -> float | None:
    """Return when this process started, as a reading of ``time.perf_counter``, to the first caller in this process.

    Returns None to later callers, as their start is not that of the process, and in interactive sessions, in which a
    trainer is not what the process was started for.

    >>> claim_start() is None or process_age() > 0
    True
    """
    global _claimed_by
    if _claimed_by == os.getpid() or sys.flags.interactive or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return None
    _claimed_by = os.getpid()  # not a boolean, which forked processes would inherit
    return time.perf_counter() - process_age()


def _start_ticks() -> int | None:
    """Return the start of this process in clock ticks since boot; None if the system does not say."""
    try:
        # After the name of the program, which may contain spaces and parentheses.
        return int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        return None
