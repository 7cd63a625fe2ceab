"""Plots and photographs for the pages, drawn with matplotlib when the pages are built, without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Line", "draw_heat", "draw_images", "draw_lines", "photos"]

_STYLE = b"""
 <style>
  svg { color: #222; }
  text { fill: currentColor; }
  @media (prefers-color-scheme: dark) { svg { color: #ddd; } }
 </style>"""


class Line(NamedTuple):
    """A labeled curve."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def photos(size: int = 128) -> Tensor:
    """Return the two sample photographs of scikit-learn, a temple and a flower, as bytes (2, 3, size, size)."""
    from sklearn.datasets import load_sample_images

    images = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images])
    square = images.permute(0, 3, 1, 2)[..., 20:420, 120:520].float()
    small = torch.nn.functional.interpolate(square, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).to(torch.uint8)


def draw_lines(lines: Sequence[Line], x_label: str, y_label: str) -> bytes:
    """Return curves over a common axis, as SVG that follows light and dark mode."""
    figure, axes = _figure(6.4, 3.2)
    for line in lines:
        axes.plot(line.x, line.y, label=line.label)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize="small")
    return _saved(figure, "svg")


def draw_heat(values: Tensor, x_label: str, y_label: str) -> bytes:
    """Return a heat map of a matrix (H, W), as SVG that follows light and dark mode."""
    figure, axes = _figure(4.0, 3.2)
    image = axes.imshow(values.numpy(), cmap="viridis")
    figure.colorbar(image)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return _saved(figure, "svg")


def draw_images(images: Sequence[Tensor], labels: Sequence[str]) -> bytes:
    """Return images, bytes (3, H, W), side by side at their relative sizes and with labels, as transparent PNG."""
    largest = max(image.shape[-1] for image in images)
    figure, axes = _figure(1.6 * len(images), 1.9, columns=len(images))
    for panel, image, label in zip(axes, images, labels, strict=True):
        panel.imshow(image.permute(1, 2, 0).numpy())
        # One scale for all, so that a smaller image looks smaller.
        panel.set_xlim(-0.5, largest - 0.5)
        panel.set_ylim(largest - 0.5, -0.5)
        panel.set_title(label, fontsize="small", color="#808080")  # readable on light and dark pages
        panel.axis("off")
    return _saved(figure, "png")


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure without a window, and its axes (a list if there are several columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns)
    return figure, axes


def _saved(figure: Any, form: str) -> bytes:
    """The content of the file, which is reproducible."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "composer", "svg.fonttype": "none"}):
        if form != "svg":
            figure.savefig(file, format=form, dpi=120, transparent=True)
            return file.getvalue()
        figure.savefig(file, format=form, metadata={"Date": None}, transparent=True)
    return _with_dark_mode(file.getvalue())


def _with_dark_mode(svg: bytes) -> bytes:
    """Draw black lines and text in the text color of light or dark mode."""
    start = svg.index(b">", svg.index(b"<svg")) + 1
    return svg[:start] + _STYLE + svg[start:].replace(b"#000000", b"currentColor")
