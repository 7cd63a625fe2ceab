"""Compare steps of optimizers on the CPU: one weight at a time, in lists of weights, fused, and compiled."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import environment
from benchmarks.report import Report, spread

__all__ = ["measured", "report_of"]

# Number and width of square weights, and steps of a timed piece.
SIZES = {"24 of 64 x 64": (24, 64, 20), "4 of 1024 x 1024": (4, 1024, 5)}
OPTIMIZERS = ("SGD", "AdamW", "DecoupledAdamW", "MuonAdamW")
FORMS: dict[str, dict[str, Any]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OWN = "as it is"
ROUNDS = 8
LR = 1e-3


def make_optimizer(name: str, number: int, width: int, **options: Any) -> Any:
    """Return an optimizer of weights that have gradients, the same each time.

    Args:
        name: The class, of :data:`OPTIMIZERS`.
        number: Number of square weights.
        width: Rows and columns of each.
        **options: Further arguments of the optimizer.
    """
    import torch
    from torch import nn

    from composer.optim import DecoupledAdamW, MuonAdamW

    torch.manual_seed(0)
    layers = [nn.Linear(width, width, bias=False) for _ in range(number)]
    if name == "MuonAdamW":  # the first and last layer of a model are not those of Muon
        layers = [nn.Linear(4, width), *layers, nn.Linear(width, 4)]
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    if name == "MuonAdamW":
        return MuonAdamW(model, lr=LR)
    options = {"lr": LR, **({"momentum": 0.9} if name == "SGD" else {}), **options}
    found = DecoupledAdamW if name == "DecoupledAdamW" else getattr(torch.optim, name)
    return found(model.parameters(), **options)


def _compiled(optimizer: Any) -> Callable[[], Any]:
    import torch

    return torch.compile(optimizer.step)


def measured(name: str, size: str, cache: str) -> dict[str, Any]:
    """Time the steps of an optimizer in each form, in turns; return seconds in JSON types.

    Args:
        name: The class, of :data:`OPTIMIZERS`.
        size: The weights, of :data:`SIZES`.
        cache: Folder of inductor's cache.
    """
    import torch

    from benchmarks.regional_compilation import cpu_seconds, start_toolchain

    start_toolchain(cache)
    number, width, pieces = SIZES[size]
    forms = FORMS if name in ("SGD", "AdamW") else {OWN: {}}
    steps = {form: make_optimizer(name, number, width, **options).step for form, options in forms.items()}
    # A schedule changes a tensor without another compilation. Optimizers of ours take a number.
    rate: Any = torch.tensor(LR) if name in ("SGD", "AdamW") else LR
    if name != "DecoupledAdamW":  # torch does not compile its fused kernel on the CPU
        given = {} if name == "MuonAdamW" else {"lr": rate}
        steps["compiled"] = _compiled(make_optimizer(name, number, width, **given))
    begin = cpu_seconds()
    for step in steps.values():
        step()
        step()
    start = cpu_seconds() - begin
    times: dict[str, list[float]] = {form: [] for form in steps}
    for turn in range(ROUNDS):
        for form in steps if turn % 2 else reversed(steps):
            begin = time.process_time()
            for _ in range(pieces):
                steps[form]()
            times[form].append((time.process_time() - begin) / pieces)
    return {"start": start, "times": times}


def report_of(found: dict[str, dict[str, Any]]) -> Report:
    """Return the report of measurements.

    Args:
        found: What :func:`measured` returned, by optimizer and size.
    """
    rows: list[list[Any]] = []
    ratios: list[str] = []
    for name, one in found.items():
        medians = {form: statistics.median(times) for form, times in one["times"].items()}
        if "compiled" in medians:
            others = min(value for form, value in medians.items() if form != "compiled")
            ratios.append(f"{name}: {others / medians['compiled']:.2f}")
        for form, value in medians.items():
            first = form == next(iter(medians))
            start = f"{one['start']:.1f}" if form == "compiled" else "-"
            rows.append([name if first else "", form, value * 1e6, spread(one["times"][form]) * 1e6, start])
    notes = [
        f"CPU seconds on one thread, in turns, {ROUNDS} rounds. `{OWN}` is fused for DecoupledAdamW; MuonAdamW has no "
        "other form. The start is that of the compiled step, with the first steps of all forms.",
        f"Speed of a compiled step, of that of the fastest other form: {'; '.join(ratios)}.",
        "torch does not compile the fused kernel of DecoupledAdamW on the CPU.",
    ]
    columns = ["optimizer, weights", "step", "us", "spread", "start, s"]
    return Report("compiled_optimizers", "Compiled steps of optimizers", columns, rows, [], notes, found,
                  environment.describe(), arguments="--write")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS, help="all by default")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    given = parser.parse_args()
    target = "benchmarks.compiled_optimizers:measured"
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for size, name in itertools.product(SIZES, given.only):
            found[f"{name}, {size}"] = environment.call(target, {"name": name, "size": size, "cache": cache})
            print(report_of(found).text(), flush=True)
    if given.write:
        report_of(found).write()


if __name__ == "__main__":
    main()
