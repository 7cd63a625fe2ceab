"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.profiler.json_trace_handler import JSONTraceHandler
from composer.profiler.marker import Marker
from composer.profiler.profiler import Profiler
from composer.profiler.schedule import ProfilerAction, cyclic_schedule
from composer.profiler.system_profiler import SystemProfiler
from composer.profiler.torch_profiler import TorchProfiler
from composer.profiler.trace_handler import TraceHandler
from composer.profiler.trace_merging import merge_traces

__all__ = [
    "JSONTraceHandler",
    "Marker",
    "Profiler",
    "ProfilerAction",
    "SystemProfiler",
    "TorchProfiler",
    "TraceHandler",
    "cyclic_schedule",
    "merge_traces",
]
