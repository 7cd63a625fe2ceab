"""Profiler: record where the time of a training step goes, as spans of the loop and PyTorch operators in one trace.

``Trainer(profiler=Profiler(cyclic_schedule(), JSONTraceHandler()))`` writes ``{run_name}/traces/merged_trace.json``,
which https://ui.perfetto.dev opens. ``with state.profiler.marker("augment"): ...`` adds a custom span.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "JSONTraceHandler": "composer.profiler.json_trace_handler",
        "Marker": "composer.profiler.marker",
        "Profiler": "composer.profiler.profiler",
        "ProfilerAction": "composer.profiler.schedule",
        "SystemProfiler": "composer.profiler.system_profiler",
        "TorchProfiler": "composer.profiler.torch_profiler",
        "TraceHandler": "composer.profiler.trace_handler",
        "cyclic_schedule": "composer.profiler.schedule",
        "merge_traces": "composer.profiler.trace_merging",
    },
)
