"""Draws the picture of the first page: accuracy over training time, baseline against recipe, as the benchmark measured.

    python -m docs.time_to_accuracy

The picture is a file of the repository, since the README shows it too. Draw it again when
``benchmarks/results/time_to_target.json`` changes.
"""

from __future__ import annotations

from pathlib import Path

from docs.figures import RESULTS, load_results

__all__ = ["PICTURE", "draw_time_to_accuracy"]

PICTURE = Path(__file__).resolve().parent / "pictures" / "time_to_accuracy.svg"

_LOWEST, _TARGET = 0.8, 0.96
# Legible on a white page and on a dark one.
_TEXT, _COLORS = "#808690", {"baseline": "#808690", "recipe": "#e0546a"}


def draw_time_to_accuracy(path: Path = PICTURE, folder: Path = RESULTS) -> None:
    """Draw each run as a thin line, and the mean time to each accuracy as a thick one.

    Args:
        path: The file.
        folder: The folder of the result files.
    """
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure

    measured = load_results("time_to_target", folder)
    curves = measured["samples"]["vision"]["curves"]
    seconds_to_target = {row[0].removeprefix("vision: "): row[1] for row in measured["rows"]}
    settings = {"svg.hashsalt": "composer", "svg.fonttype": "none", "font.size": 11, "text.color": _TEXT}
    settings |= {f"{part}.{'labelcolor' if part == 'axes' else 'color'}": _TEXT for part in ("axes", "xtick", "ytick")}
    with mpl.rc_context({**settings, "axes.edgecolor": _TEXT}):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, color in _COLORS.items():
            runs = curves[name]
            for run in runs:
                axes.plot(run["cpu"], _percent(run["values"]), color=color, alpha=0.35, linewidth=1)
            highest = min(_TARGET, *(max(run["values"]) for run in runs))
            levels = np.linspace(_LOWEST, highest, 100)
            times = [np.interp(levels, np.maximum.accumulate(run["values"]), run["cpu"]) for run in runs]
            axes.plot(np.mean(times, axis=0), 100 * levels, color=color, linewidth=2.5, label=name)
            reached = seconds_to_target[name]
            axes.plot([reached] * 2, [0, 100 * _TARGET], color=color, linewidth=1, linestyle="--")
            axes.annotate(f" {reached:.1f} s", (reached, 80.6), color=color)
        axes.axhline(100 * _TARGET, color=_TEXT, linewidth=0.8, linestyle=":")
        axes.annotate("target: 96 %", (0.02, 96.2), xycoords=("axes fraction", "data"), fontsize=9)
        axes.set(xlabel="training time, CPU seconds", ylabel="test accuracy, %", ylim=(100 * _LOWEST, 99))
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.2)
        axes.legend(loc="center left", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None, "Description": f"Measured {measured['machine']['date']}"}
        figure.savefig(path, format="svg", transparent=True, metadata=metadata)


def _percent(values: list[float]) -> list[float]:
    return [100 * value for value in values]


if __name__ == "__main__":
    draw_time_to_accuracy()
