"""See what a process prints, line by line, without standing in its way."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Capture"]

# Colours and other control sequences, and those that go up or erase, with which a live display is drawn anew.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_REDRAWN = re.compile(r"\x1b\[(?:\d*A|2K)")


class Capture:
    """Hands each line that is printed to a function, too.

    It replaces the ``write`` of the stream objects rather than the streams, so that whoever holds one already, such as
    a log handler, is heard as well. Of a line that is overwritten, as a progress bar does, the last state counts; what
    a live display draws anew is left out, and so are colours.

    Args:
        streams: Which to listen to: "stdout", "stderr".
        take: Gets the name of the stream and a line without its end.

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

    def __init__(self, streams: Sequence[str], take: Callable[[str, str], object]) -> None:
        self._names = tuple(streams)
        self._take = take
        self._lock = threading.RLock()  # a signal handler may print in the midst of a print
        self._taps: dict[str, list[_Tap]] = {name: [] for name in streams}
        self._partial = dict.fromkeys(streams, "")

    def attach(self) -> None:
        """Listen to the streams that the process has now, besides those that it had before."""
        for name in self._names:
            stream, taps = getattr(sys, name), self._taps[name]
            if stream is None or any(tap.stream is stream for tap in taps):
                continue
            if not hasattr(stream, "__dict__"):
                raise TypeError(
                    f"The write of sys.{name}, {stream!r}, cannot be replaced; give FileLogger capture_{name}=False."
                )
            # The first one is the process's own; those that displays put into its place come and go.
            while len(taps) > 1:
                taps.pop().remove()
            taps.append(_Tap(name, stream, self._hear))

    def detach(self) -> None:
        """Listen no more, and leave the streams as they were."""
        for taps in self._taps.values():
            while taps:
                taps.pop().remove()
        with self._lock:
            for name, rest in self._partial.items():
                self._partial[name] = ""
                self._line(name, rest)

    def _hear(self, name: str, text: str) -> None:
        if _REDRAWN.search(text):
            return
        with self._lock:
            *lines, self._partial[name] = (self._partial[name] + text).split("\n")
            for line in lines:
                self._line(name, line, ended=True)

    def _line(self, name: str, line: str, ended: bool = False) -> None:
        plain = _CONTROL.sub("", line).rstrip("\r").rpartition("\r")[2]
        # An empty line is one if it was printed as one, rather than of controls alone.
        if plain or (ended and not line):
            self._take(name, plain)


class _Tap:
    """Calls a function after each ``write`` of a stream."""

    def __init__(self, name: str, stream: Any, hear: Callable[[str, str], object]) -> None:
        self.stream = stream
        self.is_open = True
        # What was there before: a tap, a `write` that somebody else gave the stream, or that of its class.
        self._own = vars(stream).get("write")
        self._below: _Tap | None = getattr(self._own, "tap", None)
        before = stream.write

        def write(text: str) -> Any:
            written = before(text)
            if self.is_open:
                hear(name, text)
            return written

        write.tap = self  # pyright: ignore[reportFunctionMemberAccess]
        self._write = stream.write = write

    def remove(self) -> None:
        """Take the function away; where another tap lies above, as soon as that goes."""
        self.is_open = False
        if vars(self.stream).get("write") is not self._write:
            return
        if self._own is None:
            del self.stream.write
        else:
            self.stream.write = self._own
        if self._below is not None and not self._below.is_open:
            self._below.remove()
