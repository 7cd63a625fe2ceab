"""The peak of the resident memory of this process."""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["resident_peak"]

_STATUS = "/proc/self/status"


def resident_peak() -> int:
    """Return the most resident memory that this process has had, in bytes; 0 on systems that do not report it.

    On Linux, a process that a larger one has started is reported with the peak of that one, in whose memory it begins,
    until its own is higher: a small program that a notebook starts seems to need what the notebook does.

    >>> resident_peak() > 2**20
    True
    """
    reported = _reported_peak()
    # The file takes ten times as long to read, and this may run in every step.
    return reported if reported > _inherited_peak() else _own_peak() or reported


def _reported_peak() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@functools.cache
def _inherited_peak() -> int:
    """Return the reported peak if it is not that of this process, and 0 if it is."""
    reported = _reported_peak()
    return reported if _own_peak() < reported else 0


def _own_peak() -> int:
    """Return the peak of the memory that belongs to this program, or 0 on systems other than Linux."""
    try:
        descriptor = os.open(_STATUS, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        _, found, rest = os.read(descriptor, 4096).partition(b"VmHWM:")
    finally:
        os.close(descriptor)
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else 0
