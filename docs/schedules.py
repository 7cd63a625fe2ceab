"""Generate a page for each schedule, with its curve."""

from __future__ import annotations

import inspect

from composer import optim
from composer.optim import ComposerScheduler
from docs.drawing import Line, draw_lines
from docs.text import api, papers, prose, summary, table

__all__ = ["EXAMPLES", "public_schedules", "schedule_pages", "schedule_pictures", "schedule_values"]

# The calls that are plotted over a run of ten epochs. Other schedules are plotted with their defaults.
EXAMPLES: dict[str, list[str]] = {
    "ConstantScheduler": ["ConstantScheduler(alpha=0.5, t_max='5ep')"],
    "ConstantWithWarmupScheduler": ["ConstantWithWarmupScheduler(t_warmup='2ep')"],
    "CosineAnnealingScheduler": ["CosineAnnealingScheduler()", "CosineAnnealingScheduler(alpha_f=0.2)"],
    "CosineAnnealingWarmRestartsScheduler": [
        "CosineAnnealingWarmRestartsScheduler(t_0='2ep')",
        "CosineAnnealingWarmRestartsScheduler(t_0='2ep', t_mult=2.0)",
    ],
    "CosineAnnealingWithWarmupScheduler": ["CosineAnnealingWithWarmupScheduler(t_warmup='2ep')"],
    "ExponentialScheduler": ["ExponentialScheduler(gamma=0.7)", "ExponentialScheduler(gamma=0.9)"],
    "InverseSquareRootScheduler": ["InverseSquareRootScheduler(t_warmup='2ep')"],
    "LinearScheduler": ["LinearScheduler()", "LinearScheduler(alpha_i=1.0, alpha_f=0.2)"],
    "LinearWithWarmupScheduler": ["LinearWithWarmupScheduler(t_warmup='2ep')"],
    "MultiStepScheduler": ["MultiStepScheduler(milestones=['3ep', '7ep'], gamma=0.3)"],
    "MultiStepWithWarmupScheduler": [
        "MultiStepWithWarmupScheduler(t_warmup='2ep', milestones=['5ep', '8ep'], gamma=0.3)"
    ],
    "PolynomialScheduler": ["PolynomialScheduler(power=2.0)", "PolynomialScheduler(power=0.5)"],
    "PolynomialWithWarmupScheduler": ["PolynomialWithWarmupScheduler(t_warmup='2ep')"],
    "SequentialScheduler": ["SequentialScheduler([ConstantScheduler(), LinearScheduler()], milestones=['4ep'])"],
    "StepScheduler": ["StepScheduler(step_size='3ep', gamma=0.5)"],
    "WarmupStableDecayScheduler": ["WarmupStableDecayScheduler(t_warmup='1ep')"],
    "WithWarmup": ["WithWarmup(StepScheduler('3ep', gamma=0.5), t_warmup='1ep')"],
}
# Depends on a metric, not on the time, so there is no curve.
WITHOUT_CURVE = frozenset({"ReduceOnPlateauScheduler"})


def public_schedules() -> dict[str, type[ComposerScheduler]]:
    """Return the schedules by name."""
    found = {name: getattr(optim, name) for name in sorted(optim.__all__)}
    return {
        name: value
        for name, value in found.items()
        if inspect.isclass(value) and issubclass(value, ComposerScheduler) and value is not ComposerScheduler
    }


def schedule_pages() -> dict[str, str]:
    """Return a page for each schedule, and an index page."""
    pages: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for name, schedule in public_schedules().items():
        parts = [f"# {name}", prose(schedule)]
        if name not in WITHOUT_CURVE:
            drawn = " and ".join(f"`{code}`" for code in _codes(name))
            parts.append(
                f"![Curve of the schedule over ten epochs](pictures/{name}.svg)\n\nValues over ten epochs: {drawn}."
            )
        cited = papers(schedule)
        if cited:
            parts.append("Paper: " + ", ".join(f"<{address}>" for address in cited))
        parts += ["## Reference", api(f"{schedule.__module__}.{name}")]
        pages[f"schedules/{name}.md"] = "\n\n".join(parts) + "\n"
        rows.append((f"[{name}]({name}.md)", summary(schedule)))
    about = (
        "# Schedules\n\nA schedule is a function of the progress of a run. Its value multiplies the learning rate, or "
        "another hyperparameter. `+` concatenates schedules, `.with_warmup(...)` adds a warmup, `.assign(...)` assigns "
        "a schedule to parameter groups, and `.preview(...)` returns the values without a run. The "
        "[guide](../guides/schedulers.md) has examples.\n\n"
    )
    pages["schedules/index.md"] = about + table(["schedule", "description"], rows) + "\n"
    return pages


def schedule_pictures() -> dict[str, bytes]:
    """Return the curve of each schedule."""
    pictures: dict[str, bytes] = {}
    for name in public_schedules():
        if name in WITHOUT_CURVE:
            continue
        lines = [Line(code, [epoch / 100 for epoch in range(1001)], schedule_values(code)) for code in _codes(name)]
        pictures[f"schedules/pictures/{name}.svg"] = draw_lines(lines, "epochs", "learning rate multiplier")
    return pictures


def _codes(name: str) -> list[str]:
    return EXAMPLES.get(name, [f"{name}()"])


def schedule_values(code: str) -> list[float]:
    """Return the values of a schedule over ten epochs of a hundred batches.

    Args:
        code: The call that creates it.
    """
    made: ComposerScheduler = eval(code, {name: getattr(optim, name) for name in optim.__all__})
    return made.preview("10ep", epoch_length=100)
