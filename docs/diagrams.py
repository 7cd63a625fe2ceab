"""Diagrams of the guides as inline SVG: the training loop, microbatches, sharding, checkpoints and schedules.

They use the colors of the page, so they work in light and dark mode, and are readable at a width of 360 pixels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from docs.schedules import schedule_values

__all__ = ["DIAGRAMS", "with_diagrams"]

_MARK = re.compile(r"^<!-- picture: (\w+) -->$", flags=re.MULTILINE)
_WIDTH = 400
_TEXT = "var(--md-default-fg-color, currentColor)"
_MUTED = "var(--md-default-fg-color--light, gray)"
_FAINT = "var(--md-default-fg-color--lighter, lightgray)"
_PANEL = "var(--md-code-bg-color, none)"
# Readable on white and on the dark background alike.
_COLORS = ("#4c8df5", "#e8833a", "#2fa36b", "#a66be0")


def with_diagrams(markdown: str, loop: str) -> str:
    """Return a page with a diagram in place of each ``<!-- picture: name -->``.

    Args:
        markdown: The page.
        loop: The pseudocode of the training loop, which the diagram of it shows.

    Raises:
        KeyError: There is no diagram of this name.

    >>> with_diagrams("Text.", loop="")
    'Text.'
    """
    return _MARK.sub(lambda found: DIAGRAMS[found[1]](loop), markdown)


def _text(x: float, y: float, text: str, *, size: float = 12, color: str = _TEXT, anchor: str = "start") -> str:
    mono = ' font-family="var(--md-code-font-family, monospace)"' if re.fullmatch(r"[A-Z_]{4,}", text) else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" style="fill:{color}"{mono}>'
        f"{escape(text)}</text>"
    )


def _rect(x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = _MUTED) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
        f'style="fill:{fill};stroke:{stroke};stroke-width:1"/>'
    )


def _line(points: Sequence[tuple[float, float]], *, color: str = _MUTED, width: float = 1, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f";stroke-dasharray:{dash}" if dash else ""
    return f'<polyline points="{path}" style="fill:none;stroke:{color};stroke-width:{width:g}{dashed}"/>'


def _arrow(x: float, top: float, bottom: float) -> str:
    head = [(x - 4, bottom - 5), (x, bottom), (x + 4, bottom - 5)]
    return _line([(x, top), (x, bottom)]) + _line(head)


def _chip(x: float, y: float, width: float, text: str, color: str) -> str:
    """A filled box of one line of text, whose baseline is at ``y``."""
    box = f'<rect x="{x:g}" y="{y - 13:g}" width="{width:g}" height="18" rx="9" style="fill:{color}"/>'
    return box + _text(x + width / 2, y, text, size=11, color="#fff", anchor="middle")


def _figure(height: float, title: str, parts: Sequence[str]) -> str:
    """The diagram as a block of HTML in one line, which Markdown leaves as it is."""
    return (
        f'<figure style="margin:1em 0;width:100%;max-width:24rem"><svg viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title)}" style="display:block;width:100%;height:auto">'
        f"{''.join(parts)}</svg></figure>"
    )


# ------------------------------------------------------------------------------------------------- training loop

_ROW, _INSET = 23, 9
_ACTIONS = {"DATALOADER": "next batch", "FORWARD": "forward", "LOSS": "loss", "BACKWARD": "backward"}
_COMPUTED = "#2f6fd6"
_EVALUATED = "#8a56c4"


class _Row(NamedTuple):
    depth: int
    text: str


def _loop(loop: str) -> str:
    rows = [_Row((len(line) - len(line.lstrip())) // 4, line.strip()) for line in loop.splitlines()]
    parts: list[str] = []
    open_boxes: list[tuple[int, float]] = []
    y = 4.0

    def close(depth: int) -> None:
        nonlocal y
        while open_boxes and open_boxes[-1][0] >= depth:
            level, top = open_boxes.pop()
            y += 5
            fill = _PANEL if level % 2 == 0 else "var(--md-default-bg-color, none)"
            box = _rect(1 + level * _INSET, top, _WIDTH - 2 - 2 * level * _INSET, y - top, fill=fill)
            parts.insert(boxes_at[level], box)
            y += 5

    boxes_at: dict[int, int] = {}
    skip = False
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if skip:
            skip = False
            continue
        close(row.depth)
        left, right = 10 + row.depth * _INSET, _WIDTH - 10 - row.depth * _INSET
        name = row.text.removesuffix(":")
        if row.text.endswith(":"):
            open_boxes.append((row.depth, y))
            boxes_at[row.depth] = len(parts)
            shown = name.replace("for ", "for each ") + (" ↻" if name.startswith("for ") else "")
            parts.append(_text(left, y + 16, shown, size=12, color=_MUTED))
            y += _ROW
            continue
        base = y + 15
        step = name.removeprefix("BEFORE_")
        if following is not None and following.text == f"AFTER_{step}" and step in _ACTIONS:
            parts.append(_text(left, base, name, size=11))
            parts.append(_chip(_WIDTH / 2 - 36, base, 72, _ACTIONS[step], _COMPUTED))
            parts.append(_text(right, base, following.text, size=11, anchor="end"))
            skip = True
        elif name == "evaluate":
            parts.append(_chip(left, base, 150, "evaluate, if it is due", _EVALUATED))
        else:
            parts.append(_text(left, base, name, size=11))
        y += _ROW
        if name == "AFTER_TRAIN_BATCH":
            parts.append(_chip(left, base + _ROW, 190, "optimizers and schedules step", _COMPUTED))
            y += _ROW
    close(0)
    return _figure(y, "The training loop: nested loops over epochs, batches and microbatches, with their events", parts)


# -------------------------------------------------------------------------------------------------- microbatches


def _microbatches(_: str) -> str:
    cell, left = 26.0, 100.0
    parts = [_text(0, 24, "batch of 8")]
    sizes = (3, 3, 2)
    first = 0
    for row, size in enumerate(sizes):
        color = _COLORS[row]
        parts += [_rect(left + (first + k) * cell, 8, cell - 4, 24, fill=color, stroke=color) for k in range(size)]
        y = 64.0 + 42 * row
        parts.append(_text(0, y + 16, f"microbatch {row + 1}"))
        parts += [_rect(left + k * cell, y, cell - 4, 24, fill=color, stroke=color) for k in range(size)]
        parts += [_rect(188, y, 118, 24), _text(247, y + 16, "forward, backward", anchor="middle")]
        parts += [_line([(306, y + 12), (326, y + 12)]), _text(332, y + 16, f"× {size}/8", color=color, size=13)]
        first += size
    parts.append(_arrow(left + 4 * cell - 2, 36, 58))
    parts.append(_line([(372, 64), (386, 64), (386, 172), (372, 172)]))
    parts.append(_line([(386, 172), (386, 212)]))
    parts += [_rect(100, 200, 270, 26, fill=_PANEL), _line([(386, 212), (371, 212)])]
    parts.append(_text(235, 217, "sum = gradient of the full batch", anchor="middle"))
    parts += [_arrow(235, 226, 246), _chip(150, 262, 170, "optimizer steps once", _COMPUTED)]
    title = "A batch of 8 samples is split into 3 microbatches; their weighted gradients add up to that of the batch"
    return _figure(274, title, parts)


# ------------------------------------------------------------------------------------------------------ sharding

_RANKS = 4


class _Layout(NamedTuple):
    """Which of four parameter shards each rank holds, and which data it trains on."""

    name: str
    shards: Sequence[Sequence[int]]
    data: Sequence[str]
    upright: bool = False


_LAYOUTS = (
    _Layout("DDP: every rank holds all parameters", [range(4)] * 4, ["data 0", "data 1", "data 2", "data 3"]),
    _Layout("FSDP: every rank holds one shard", [[0], [1], [2], [3]], ["data 0", "data 1", "data 2", "data 3"]),
    _Layout(
        "HSDP: sharded in groups of 2, replicated across groups",
        [[0, 1], [2, 3], [0, 1], [2, 3]],
        ["data 0", "data 1", "data 2", "data 3"],
    ),
    _Layout(
        "Tensor parallelism: a slice of each layer, same data",
        [[0], [1], [2], [3]],
        ["data 0", "data 0", "data 0", "data 0"],
        upright=True,
    ),
)


def _sharding(_: str) -> str:
    parts: list[str] = []
    size, gap, left = 64.0, 34.0, 22.0
    for number, layout in enumerate(_LAYOUTS):
        top = 132.0 * number
        parts.append(_text(0, top + 14, layout.name))
        for rank, held in enumerate(layout.shards):
            x, y = left + rank * (size + gap), top + 24
            for shard in range(4):
                color = _COLORS[shard]
                fill, stroke = (color, color) if shard in held else ("none", _FAINT)
                offset = shard * size / 4
                if layout.upright:
                    parts.append(_rect(x + offset, y, size / 4 - 2, size - 2, fill=fill, stroke=stroke))
                else:
                    parts.append(_rect(x, y + offset, size - 2, size / 4 - 2, fill=fill, stroke=stroke))
            middle = x + size / 2
            parts.append(_text(middle, y + size + 13, f"rank {rank}, {layout.data[rank]}", size=11, anchor="middle"))
    title = "What each of four ranks holds with DDP, FSDP, HSDP and tensor parallelism"
    return _figure(132 * len(_LAYOUTS) - 16, title, parts)


# --------------------------------------------------------------------------------------------------- checkpoints

_LAST, _STOPPED = 20, 12


def _checkpoints(_: str) -> str:
    def x(batch: float) -> float:
        return 50 + batch * 14

    saved = [5, 10, _STOPPED, 15, _LAST]
    parts = [_text(0, 34, "run"), _text(0, 108, "files")]
    blue, orange, green = _COLORS[:3]
    parts.append(_line([(x(0), 30), (x(_STOPPED), 30)], color=blue, width=5))
    parts.append(_line([(x(_STOPPED) + 3, 30), (x(_LAST), 30)], color=green, width=5))
    parts.append(_text(x(0), 14, "first start", size=11, color=blue))
    parts.append(_text(x(_LAST), 14, "same command: resumes", size=11, color=green, anchor="end"))
    parts.append(_line([(x(_STOPPED) + 1.5, 20), (x(_STOPPED) + 1.5, 44)], color=orange, width=3))
    parts.append(_text(x(_STOPPED) + 6, 54, "SIGTERM: saves, exits", size=11, color=orange))
    for batch in saved:
        parts.append(f'<circle cx="{x(batch):g}" cy="30" r="4" style="fill:{_TEXT}"/>')
    for row, batch in enumerate(saved):
        y = 76.0 + 20 * row
        kept = row >= len(saved) - 2
        end = _LAST if kept else saved[row + 2]
        parts.append(_text(x(batch) - 6, y + 4, f"ba{batch}", size=11, anchor="end"))
        parts.append(_line([(x(batch), y), (max(x(end), x(batch) + 6), y)], color=blue, width=6))
        if kept:
            parts.append(_text(x(_LAST) + 12, y + 4, "kept", size=11, color=green))
        else:
            parts.append(_text(x(end) + 4, y + 4, "deleted", size=11, color=_MUTED))
    parts.append(_line([(x(0), 180), (x(_LAST), 180)]))
    for batch in range(0, _LAST + 1, 5):
        parts += [_line([(x(batch), 177), (x(batch), 183)])]
        parts.append(_text(x(batch), 197, str(batch), size=11, anchor="middle"))
    parts.append(_text(0, 197, "batch", size=11))
    title = "Checkpoints are saved every 5 batches and on SIGTERM; the newest two are kept; the run resumes at batch 12"
    return _figure(204, title, parts)


# ----------------------------------------------------------------------------------------------------- schedules

_SCHEDULES = {
    "Cosine with warmup": "CosineAnnealingWithWarmupScheduler(t_warmup='1ep')",
    "Linear with warmup": "LinearWithWarmupScheduler(t_warmup='1ep')",
    "Warmup-stable-decay": "WarmupStableDecayScheduler(t_warmup='1ep')",
    "Inverse square root": "InverseSquareRootScheduler(t_warmup='1ep')",
    "Multi-step": "MultiStepScheduler(milestones=['3ep', '7ep'], gamma=0.3)",
    "Cosine with warm restarts": "CosineAnnealingWarmRestartsScheduler(t_0='2ep', t_mult=2.0)",
}


def _schedules(_: str) -> str:
    parts: list[str] = []
    width, height = 172.0, 74.0
    for number, (name, code) in enumerate(_SCHEDULES.items()):
        left, top = 8 + 214.0 * (number % 2), 22 + 116.0 * (number // 2)
        values = schedule_values(code)
        points = [
            (left + width * step / (len(values) - 1), top + height * (1 - value))
            for step, value in enumerate(values)
            if step % 5 == 0
        ]
        parts.append(_text(left, top - 8, name))
        parts.append(_line([(left, top - 2), (left, top + height), (left + width, top + height)]))
        parts.append(_line(points, color=_COLORS[0], width=2))
    return _figure(116 * 3 - 8, "Curves of six learning rate schedules over a run", parts)


DIAGRAMS = {
    "checkpoints": _checkpoints,
    "loop": _loop,
    "microbatches": _microbatches,
    "schedules": _schedules,
    "sharding": _sharding,
}
"""The functions that return each diagram as HTML, by name; each takes the pseudocode of the loop."""
