"""``composer doctor``: why is a training program slow, and what makes it faster?

The modules, in reading order:

- ``doctor``: the measurement, the verdict, the remedies, and the report.
- ``recorder``: what a trial does: trains some steps as they are and measures them.
- ``step_clock``, ``step_timer``: the time of a step, split among stages, methods, callbacks and loggers.
- ``clock_cost``: what measuring the time of a step costs itself.
- ``communication``: waits for other ranks, and the slowest rank.
- ``device_timeline``: what a part takes on an accelerator, which the host runs ahead of.
- ``user_lines``, ``line_sampler``: the lines of the user's code that take the time.
- ``operator_counter``: the operators of a step, and those that would wait for an accelerator.
- ``outputs``, ``redirected_writes``: loggers and checkpoints of the program, which write into the folder of the trial.
- ``run_facts``: what is known of the run: its data, model, optimizers and device.
- ``verdict``: what bounds the speed, with the evidence.
- ``remedies``, ``remedy_rules``, ``edits``: what is tried, and when it applies.
- ``first_steps``: whether a remedy changes numbers, by the losses of the first steps.
- ``block_recorder``: measure remedies in turn, a block of steps each.
- ``report``: the report; ``report_page``, ``charts``: the same as an HTML page with plots.
- ``step_trace``: the profiler's trace of some steps beside it.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "REMEDIES": "composer.diagnosis.remedies",
        "Report": "composer.diagnosis.report",
        "Verdict": "composer.diagnosis.verdict",
        "doctor": "composer.diagnosis.doctor",
    },
)
