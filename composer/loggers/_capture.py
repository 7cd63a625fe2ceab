"""Capture what a process prints to stdout and stderr, line by line, while it is still printed."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Capture"]

# Colors and other control sequences, and those that move up or erase, with which a live display is redrawn.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_REDRAWN = re.compile(r"\x1b\[(?:\d*A|2K)")


class Capture:
    """Passes each printed line to a function, in addition to printing it.

    It replaces the ``write`` of the stream objects rather than the streams, so that references to a stream, such as in
    a log handler, are captured as well. Of a line that is overwritten, as by a progress bar, only the last state is
    captured; redraws of live displays and colors are dropped.

    Args:
        streams: Names of the streams: "stdout", "stderr".
        callback: Called with the name of the stream and a line without its newline.

    Raises:
        TypeError: The ``write`` of a stream cannot be replaced; raised by :meth:`attach`.

    >>> lines = []
    >>> capture = Capture(["stdout"], lambda stream, line: lines.append((stream, line)))
    >>> capture.attach()
    >>> print("text")
    text
    >>> capture.detach()
    >>> print("more")
    more
    >>> lines
    [('stdout', 'text')]
    """

    def __init__(self, streams: Sequence[str], callback: Callable[[str, str], object]) -> None:
        self._names = tuple(streams)
        self._callback = callback
        self._lock = threading.RLock()  # reentrant, as a signal handler may print during a print
        self._taps: dict[str, list[_Tap]] = {name: [] for name in streams}
        self._partial = dict.fromkeys(streams, "")

    def attach(self) -> None:
        """Capture the current streams of the process, in addition to the original ones."""
        for name in self._names:
            stream, taps = getattr(sys, name), self._taps[name]
            if stream is None or any(tap.stream is stream for tap in taps):
                continue
            if not hasattr(stream, "__dict__"):
                raise TypeError(
                    f"The write method of sys.{name}, {stream!r}, cannot be replaced; pass "
                    f"FileLogger(capture_{name}=False)."
                )
            # The first is the process's original stream; those installed by displays come and go.
            while len(taps) > 1:
                taps.pop().remove()
            taps.append(_Tap(name, stream, self._receive))

    def detach(self) -> None:
        """Stop capturing, and restore the streams."""
        for taps in self._taps.values():
            while taps:
                taps.pop().remove()
        with self._lock:
            for name, rest in self._partial.items():
                self._partial[name] = ""
                self._line(name, rest)

    def _receive(self, name: str, text: str) -> None:
        if _REDRAWN.search(text):
            return
        with self._lock:
            *lines, self._partial[name] = (self._partial[name] + text).split("\n")
            for line in lines:
                self._line(name, line, ended=True)

    def _line(self, name: str, line: str, ended: bool = False) -> None:
        plain = _CONTROL.sub("", line).rstrip("\r").rpartition("\r")[2]
        # An empty line counts if it was printed as such, rather than consisting of control sequences.
        if plain or (ended and not line):
            self._callback(name, plain)


class _Tap:
    """Calls a function after each ``write`` of a stream."""

    def __init__(self, name: str, stream: Any, receive: Callable[[str, str], object]) -> None:
        self.stream = stream
        self.is_open = True
        # The previous `write` on the instance, a tap or another replacement; None for that of its class.
        self._previous = vars(stream).get("write")
        self._below: _Tap | None = getattr(self._previous, "tap", None)
        before = stream.write

        def write(text: str) -> Any:
            written = before(text)
            if self.is_open:
                receive(name, text)
            return written

        write.tap = self  # pyright: ignore[reportFunctionMemberAccess]
        self._write = stream.write = write

    def remove(self) -> None:
        """Remove the function; if another tap is installed on top, as soon as that is removed."""
        self.is_open = False
        if vars(self.stream).get("write") is not self._write:
            return
        if self._previous is None:
            del self.stream.write
        else:
            self.stream.write = self._previous
        if self._below is not None and not self._below.is_open:
            self._below.remove()
