"""Run a program with a planted bottleneck under one tool: what `benchmarks.doctor_tools` starts in separate processes.

As a script (`traceml run doctor_runs.py --args MODULE:FUNCTION`) it trains the program with the steps of traceml-ai.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT

# traceml-ai is confident from 20 steps on, and the profile is of few, since it records each Python function.
TRACED_STEPS, PROFILED_STEPS = 40, 2
_WAIT, _WARMUP = 4, 1
ROWS = 3


def diagnose(program: str, ranks: int) -> dict[str, Any]:
    """Return the verdict of ``composer doctor`` without remedies.

    Args:
        program: The program as "module:function".
        ranks: Number of processes. With several, ``find_unused`` is measured, since it is part of the verdict.
    """
    from composer.diagnosis.doctor import doctor
    from composer.trials import Target

    report = doctor(Target("function", program), remedies=["find_unused"] if ranks > 1 else [], ranks=ranks)
    verdict = report.verdict
    return {"cause": verdict.cause, "where": verdict.where, "text": verdict.text, "shares": dict(report.shares)}


def _trainer(program: str) -> Any:
    module, _, function = program.partition(":")
    return getattr(importlib.import_module(module), function)()


def trace(program: str) -> None:
    """Train with a step of traceml-ai for each batch, as its guide for loops of one's own says.

    The step begins when the batch is there and ends before the next one is asked for, so that callbacks, loggers,
    evaluation and checkpoints are within. The batches of the evaluation do not count as input, as in its own
    integrations of trainers.

    Args:
        program: The program as "module:function".
    """
    import traceml_ai as traceml
    from traceml_ai.instrumentation.patches.dataloader_patch import suppress_dataloader_timing

    from composer import Algorithm

    class Traced(Algorithm):
        """The last algorithm, so that it is the first one when a batch has been loaded."""

        def __init__(self) -> None:
            self.count, self.step, self.evaluation = 0, None, None

        def after_dataloader(self, state: Any, logger: Any) -> None:
            if self.count == TRACED_STEPS:
                state.stop_training()
                return
            self.count += 1
            self.step = traceml.trace_step(state.model)
            self.step.__enter__()

        def before_dataloader(self, state: Any, logger: Any) -> None:
            if self.step is not None:
                self.step.__exit__(None, None, None)
                self.step = None

        def eval_start(self, state: Any, logger: Any) -> None:
            self.evaluation = suppress_dataloader_timing()
            self.evaluation.__enter__()

        def eval_end(self, state: Any, logger: Any) -> None:
            self.evaluation.__exit__(None, None, None)

    traceml.init(mode="auto")
    trainer = _trainer(program)
    trainer.state.algorithms.append(Traced())
    trainer.fit(duration=f"{TRACED_STEPS + 1}ba")


def profile(program: str, file: str = "") -> dict[str, Any]:
    """Return what torch's profiler shows of some steps: the top rows by self CPU time, and the stacks of these.

    Args:
        program: The program as "module:function".
        file: Where rank 0 writes the result as JSON as well.
    """
    import json

    import torch
    from torch.profiler import ProfilerActivity, schedule

    from composer import Callback, dist

    # Without `verbose` the events have no stacks.
    config = torch._C._profiler._ExperimentalConfig(verbose=True)
    profiler = torch.profiler.profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=_WAIT, warmup=_WARMUP, active=PROFILED_STEPS, repeat=1),
        with_stack=True,
        experimental_config=config,
    )

    class Profiled(Callback):
        def __init__(self) -> None:
            self.started = False

        # Between two of these lies a whole step, with the loading of the next batch. Started within that loading,
        # the profiler gives the generator of the batches time that is not its own.
        def batch_start(self, state: Any, logger: Any) -> None:
            if self.started:
                profiler.step()
            else:
                profiler.start()
                self.started = True

    trainer = _trainer(program)
    trainer.state.callbacks.append(Profiled())
    trainer.fit(duration=f"{_WAIT + _WARMUP + PROFILED_STEPS + 2}ba")
    profiler.stop()
    found = _top_of(profiler.events())
    if file and dist.get_global_rank() == 0:
        Path(file).write_text(json.dumps(found))
    return found


def _top_of(events: Any) -> dict[str, Any]:
    """The top rows of the table by self CPU time, and the frames of the stack in which each takes most of it.

    As ``key_averages(group_by_stack_n=...)`` gives them, but only of the thread that trains: others spend their time
    waiting for work, and would take all rows.
    """
    thread = next(event.thread for event in events if event.name.startswith("ProfilerStep"))
    rows: Counter[str] = Counter()
    stacks: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for event in events:
        if event.thread == thread:
            rows[event.name] += event.self_cpu_time_total
            stacks[event.name][tuple(event.stack or ())] += event.self_cpu_time_total
    top = [name for name, _ in rows.most_common(ROWS)]
    return {"rows": top, "frames": [frame for name in top for frame in stacks[name].most_common(1)[0][0]]}


def lines_of(module: str, place: str) -> tuple[str, range] | None:
    """Return the file of a program and the lines of a class or function in it; None if it defines none of this name.

    Args:
        module: Name of the module.
        place: Name, such as "Sleeping" or "Recurrent.forward".
    """
    path = Path(*module.split(".")).with_suffix(".py")
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text()).body
    found: ast.AST | None = None
    for name in place.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = next((each for each in body if isinstance(each, kinds) and each.name == name), None)
        if found is None:
            return None
        body = found.body
    return path.as_posix(), range(found.lineno, (found.end_lineno or found.lineno) + 1)


def main(arguments: list[str]) -> None:
    """Call one of the functions that are started by a launcher."""
    called: dict[str, Callable[..., Any]] = {"trace": trace, "profile": profile}
    called[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
