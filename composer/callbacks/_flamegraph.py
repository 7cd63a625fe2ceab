"""Render flame graphs of stacks and their sizes as SVG.

Paper: The Flame Graph, Gregg 2016, https://queue.acm.org/detail.cfm?id=2927301
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

__all__ = ["render_flamegraph"]

_WIDTH = 1200
_ROW = 16
_LETTER = 7.0


@dataclass
class _Frame:
    """A function in the stacks, with the total size of the stacks through it."""

    name: str
    size: float = 0.0
    callees: dict[str, _Frame] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return 1 + max((frame.depth for frame in self.callees.values()), default=0)


def render_flamegraph(folded: str, unit: str = "bytes") -> str:
    """Render stacks as an SVG flame graph: a box per frame, on top of its caller, as wide as its fraction of the total.

    Hovering over a frame shows its name, size and percentage.

    Args:
        folded: One line per stack: its frames joined by semicolons, outermost first, then its size:
            ``"main;train;forward 1024"``.
        unit: Unit of the sizes.

    Raises:
        ValueError: A line has no size.

    >>> picture = render_flamegraph("main;a 1\\nmain;b 3")
    >>> picture.count("<rect"), "b: 3 bytes (75.0 %)" in picture
    (4, True)
    """
    root = _parse(folded)
    height = root.depth * _ROW
    boxes = "\n".join(_boxes(root, 0.0, 0, height, root.size or 1.0, unit))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'font-family="monospace" font-size="11">\n{boxes}\n</svg>\n'
    )


def _parse(folded: str) -> _Frame:
    root = _Frame("all")
    for line in filter(str.strip, folded.splitlines()):
        stack, _, size = line.rstrip().rpartition(" ")
        try:
            amount = float(size)
        except ValueError:
            raise ValueError(f"A folded stack must end in a space and its size; got {line!r}.") from None
        frame = root
        frame.size += amount
        for name in stack.split(";"):
            frame = frame.callees.setdefault(name, _Frame(name))
            frame.size += amount
    return root


def _boxes(frame: _Frame, left: float, level: int, height: int, total: float, unit: str) -> Iterator[str]:
    width = frame.size / total * _WIDTH
    top = height - (level + 1) * _ROW
    text = escape(f"{frame.name}: {frame.size:,.0f} {unit} ({frame.size / total:.1%})".replace("%", " %"))
    shown = escape(frame.name[: int(width / _LETTER)])
    yield (
        f'<g><title>{text}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 1}" '
        f'fill="{_color(frame.name)}"/><text x="{left + 2:.1f}" y="{top + 12}">{shown}</text></g>'
    )
    for callee in sorted(frame.callees.values(), key=lambda callee: callee.name):
        yield from _boxes(callee, left, level + 1, height, total, unit)
        left += callee.size / total * _WIDTH


def _color(name: str) -> str:
    """Return a warm color that depends only on the name."""
    seed = zlib.crc32(name.encode())
    return f"rgb({205 + seed % 50},{80 + seed // 50 % 130},{seed // 6500 % 55})"
