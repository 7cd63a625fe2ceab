"""Plot a memory timeline from the PyTorch profiler: memory in use over time, by category."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import torch

from composer._lazy import import_extra

__all__ = ["export_memory_timeline_html"]

_GIB = 1024**3


def export_memory_timeline_html(
    prof: torch.profiler.profile,
    path: str | Path,
    device: str | None = None,
    figsize: tuple[float, float] = (20, 12),
    title: str | None = None,
    yxis_step_size: float = 1.0,
    return_fig: bool = False,
) -> Any:
    """Plot the memory in use during a PyTorch profile; in a :class:`.TorchProfiler`, set ``memory_filename`` instead.

    Args:
        prof: A profile with ``record_shapes``, ``profile_memory`` and ``with_stack``.
        path: The HTML file to write.
        device: The device, such as "cuda:0". Default: the accelerator in use by this process, or else the CPU.
        figsize: Width and height in inches.
        title: Title of the plot.
        yxis_step_size: Distance between grid lines, in GiB.
        return_fig: Whether to return the matplotlib figure instead of writing the file.

    Raises:
        MissingConditionalImportError: matplotlib is not installed.

    >>> import tempfile
    >>> with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
    ...     _ = torch.nn.Linear(8, 8)(torch.ones(8, 8)).sum().backward()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_memory_timeline_html(prof, f"{folder}/memory.html", device="cpu")
    ...     "<img" in Path(folder, "memory.html").read_text()
    True
    """
    import_extra("matplotlib", "examples", "export_memory_timeline_html")
    from matplotlib.figure import Figure
    from torch.profiler import _memory_profiler as memory_profiler

    if device is None:
        device = _device_in_use()
    # PyTorch's public API only writes the numbers to a file.
    times, sizes = memory_profiler.MemoryProfileTimeline(prof._memory_profile())._coalesce_timeline(device)  # pyright: ignore
    levels = (torch.tensor(sizes, dtype=torch.float64).cumsum(1) / _GIB).T.tolist()
    milliseconds = [(time - times[0]) / 1e3 for time in times]
    figure = Figure(figsize=figsize, dpi=80)
    axes = figure.gca()
    for category, color in memory_profiler._CATEGORY_TO_COLORS.items():
        index = memory_profiler._CATEGORY_TO_INDEX[category]
        label = "Unknown" if category is None else category.name
        axes.fill_between(milliseconds, levels[index], levels[index + 1], color=color, alpha=0.7, label=label)
    figure.legend()
    axes.grid(visible=True)
    axes.set(xlabel="time (ms)", ylabel="memory (GiB)", title=title or "")
    top, step = axes.get_ylim()[1], yxis_step_size
    axes.set_yticks([step * tick for tick in range(int(top / step) + 1)])
    if return_fig:
        return figure
    image = io.BytesIO()
    figure.savefig(image, format="png")
    encoded = base64.b64encode(image.getvalue()).decode()
    Path(path).write_text(f'<html><body><img src="data:image/png;base64,{encoded}"></body></html>\n')
    return None


def _device_in_use() -> str:
    """Return the current accelerator with its index, as the timeline names it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or not getattr(torch.get_device_module(accelerator), "is_initialized", lambda: True)():
        return "cpu"  # reading the index would initialize it
    return f"{accelerator.type}:{torch.accelerator.current_device_index()}"
