"""Measure the import time over ``import torch``, in new processes."""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from typing import Any

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

# Heavy packages that must not come in by an import alone.
HEAVY = ("torchvision", "torchmetrics", "transformers", "scipy", "PIL", "rich", "fsspec", "pandas", "matplotlib")

# What is imported: its label, the contender, the module, and a name that is then used from it.
CASES = {
    "import composer": ("composer", "composer", ""),
    "from composer import Trainer": ("composer", "composer", "Trainer"),
    "import accelerate": ("accelerate", "accelerate", ""),
    "import lightning": ("lightning", "lightning", ""),
    "import composer (predecessor)": ("predecessor", "composer", ""),
}


def time_import(name: str, module: str, attribute: str) -> dict[str, Any]:
    """Import torch and then a module; return the milliseconds of both and the heavy packages that came along.

    Args:
        name: The contender whose process this is.
        module: What to import.
        attribute: What to take from it; "" for nothing.
    """
    begin = time.perf_counter()
    import torch  # noqa: F401 - timed

    with_torch = time.perf_counter()
    before = {package for package in HEAVY if package in sys.modules}
    ready = time.perf_counter()
    found = importlib.import_module(module)
    if attribute:
        getattr(found, attribute)
    end = time.perf_counter()
    heavy = [package for package in HEAVY if package in sys.modules and package not in before]
    return {"torch": (with_torch - begin) * 1e3, "added": (end - ready) * 1e3, "heavy": heavy}


def measure(names: list[str] | None = None, rounds: int = 9) -> Report:
    """Time the imports in turn, each in a fresh process, as often as there are rounds.

    Args:
        names: The contenders; by default all that are installed.
        rounds: Number of processes for each import; one more before them fills the caches.
    """
    from benchmarks import contenders  # imports torch, which the processes that are timed do themselves

    here = contenders.present(names)
    cases = {label: case for label, case in CASES.items() if case[0] in here}
    samples: dict[str, list[dict[str, Any]]] = {label: [] for label in cases}
    for counted in [False, *[True] * rounds]:
        for label, (name, module, attribute) in cases.items():
            target = "benchmarks.import_time:time_import"
            sample = contenders.ask(name, target, module=module, attribute=attribute)
            if counted:
                samples[label].append(sample)
    torch_times = [sample["torch"] for found in samples.values() for sample in found]
    rows: list[list[Any]] = [
        ["import torch", statistics.median(torch_times), spread(torch_times), min(torch_times), "-"]
    ]
    goals: list[Goal] = []
    for label, found in samples.items():
        added = [sample["added"] for sample in found]
        heavy = ", ".join(found[0]["heavy"]) or "none"
        rows.append([f"{label}, over torch", statistics.median(added), spread(added), min(added), heavy])
        if label == "import composer":
            goals.append(Goal(f"{label}, over torch", statistics.median(added), 150, "ms"))
    if "import composer" in samples:
        count = len(samples["import composer"][0]["heavy"])
        goals.append(Goal("heavy packages that import composer brings in", float(count), 0))
    notes = [
        f"{rounds} new processes for each import, in turn, after one that warms the caches; median and half the "
        "interquartile range in milliseconds.",
        "Each process imports torch first and then the library, so that only the time added by the library is counted.",
    ]
    columns = ["milliseconds", "median", "spread", "least", "heavy packages"]
    title = "Cost of an import over that of torch"
    return Report("import_time", title, columns, rows, goals, notes, samples, environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    report = measure(rounds=parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
