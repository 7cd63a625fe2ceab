"""``Profiler``: record traces of selected batches, with the spans of the training loop and custom markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from composer._numbers import whole_number
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler
from composer.core.listener_check import can_listen
from composer.profiler._spans import LoopSpans
from composer.profiler.marker import Marker
from composer.profiler.schedule import RECORDING, ProfilerAction
from composer.profiler.system_profiler import SystemProfiler
from composer.profiler.torch_profiler import TorchProfiler
from composer.profiler.trace_handler import TraceHandler
from composer.trees import ensure_tuple

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Profiler"]

_HANDLER_METHODS: Final = tuple(name for name in vars(TraceHandler) if name.startswith("process_"))


class Profiler(Callback):
    """Records traces of selected training batches, to view in https://ui.perfetto.dev.

    Pass it to the :class:`.Trainer` as ``profiler=``; it is then available as ``state.profiler``. In the batches that
    the schedule selects, it records:

    - spans of the loop: ``event/dataloader``, ``event/batch``, ``event/train_batch``, ``event/forward``,
      ``event/loss``, ``event/backward``, and those of evaluations in between;
    - every call of an algorithm, callback or logger: ``algorithm/{class}/{event}``, ``callback/{class}/{event}``;
    - custom spans, instants and counters from :meth:`marker`;
    - PyTorch operators, on the host and on the accelerator, with :class:`.TorchProfiler`;
    - counters of the system load, with :class:`.SystemProfiler`.

    A window starts before its first batch is fetched and ends with ``BATCH_END`` of its last batch, or with the run;
    then the handlers write their files. All ranks must have the same windows. In batches that are not recorded, the
    profiler only checks at each event whether it is active; a run without a profiler has no overhead. ``BATCH_END`` of
    the last batch of a window waits for the accelerator.

    If forward and loss are compiled as one graph, they appear as one span ``event/forward_and_loss``.

    Args:
        schedule: ``(state) -> ProfilerAction``, called before each batch is fetched; see :func:`.cyclic_schedule`.
        trace_handlers: Handlers of the records, such as a :class:`.JSONTraceHandler`. A test double needs only the
            methods that receive events and records.
        sys_prof_cpu: Whether to record CPU utilization. This and the next three require the extra ``system``.
        sys_prof_memory: Whether to record memory usage.
        sys_prof_disk: Whether to record disk reads and writes.
        sys_prof_net: Whether to record network traffic.
        sys_prof_stats_thread_interval_seconds: Sampling interval of these counters, in seconds.
        torch_prof_folder: Folder of PyTorch profiler traces. For this and the next arguments see
            :class:`.TorchProfiler`.
        torch_prof_filename: Name of a trace file.
        torch_prof_remote_file_name: Its name at loggers that store files; None uploads nothing.
        torch_prof_memory_filename: Name of a memory timeline; None writes none.
        torch_prof_memory_remote_file_name: Its name at loggers that store files.
        torch_prof_overwrite: Whether to overwrite files of an earlier run.
        torch_prof_use_gzip: Whether to compress the traces.
        torch_prof_record_shapes: Whether to record input shapes. If this and the next three are all False, and there is
            no memory timeline, the PyTorch profiler is not used.
        torch_prof_profile_memory: Whether to record memory allocations.
        torch_prof_with_stack: Whether to record source locations.
        torch_prof_with_flops: Whether to estimate the FLOPs of matrix products and convolutions.
        torch_prof_num_traces_to_keep: Number of most recent traces to keep; -1 keeps all.

    Attributes:
        schedule: The schedule.
        state: The state of the run, or None if the profiler is not bound to one.
        fuses_forward_and_loss: Whether forward and loss are compiled as one graph; set by the trainer.

    Raises:
        TypeError: ``schedule`` is not callable, or a handler is not a trace handler.
        ValueError: An argument is invalid.
        MissingConditionalImportError: psutil is not installed, which the system counters require.

    >>> import tempfile
    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> from composer.profiler import JSONTraceHandler, cyclic_schedule
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profiler = Profiler(
    ...         cyclic_schedule(warmup=1, active=2),
    ...         JSONTraceHandler(folder),
    ...         sys_prof_cpu=False,
    ...         torch_prof_profile_memory=False,
    ...         torch_prof_with_flops=False,
    ...     )
    ...     with Trainer(
    ...         model=model,
    ...         train_dataloader=data,
    ...         max_duration="1ep",
    ...         optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    ...         progress_bar=False,
    ...         profiler=profiler,
    ...     ) as trainer:
    ...         trainer.fit()
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['ep0-ba3-rank0.json', 'merged_trace.json']
    """

    writes_output = True

    def __init__(
        self,
        schedule: Callable[[State], ProfilerAction],
        trace_handlers: TraceHandler | Sequence[TraceHandler],
        sys_prof_cpu: bool = True,
        sys_prof_memory: bool = False,
        sys_prof_disk: bool = False,
        sys_prof_net: bool = False,
        sys_prof_stats_thread_interval_seconds: float = 0.5,
        torch_prof_folder: str = "{run_name}/torch_traces",
        torch_prof_filename: str = "rank{rank}.{batch}.pt.trace.json",
        torch_prof_remote_file_name: str | None = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json",
        torch_prof_memory_filename: str | None = None,
        torch_prof_memory_remote_file_name: str
        | None = "{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.memory_trace.html",
        torch_prof_overwrite: bool = False,
        torch_prof_use_gzip: bool = False,
        torch_prof_record_shapes: bool = False,
        torch_prof_profile_memory: bool = True,
        torch_prof_with_stack: bool = False,
        torch_prof_with_flops: bool = True,
        torch_prof_num_traces_to_keep: int = -1,
    ) -> None:
        if not callable(schedule):
            raise TypeError(f"schedule must be a function (state) -> ProfilerAction, but got {schedule!r}.")
        num_traces = whole_number("torch_prof_num_traces_to_keep", torch_prof_num_traces_to_keep, minimum=None)
        self.schedule = schedule
        self.fuses_forward_and_loss = False
        self._trace_handlers = _validate_handlers(trace_handlers)
        self._callbacks: list[SystemProfiler | TorchProfiler] = []
        if sys_prof_cpu or sys_prof_memory or sys_prof_disk or sys_prof_net:
            interval = sys_prof_stats_thread_interval_seconds
            self._callbacks.append(SystemProfiler(sys_prof_cpu, sys_prof_memory, sys_prof_disk, sys_prof_net, interval))
        if (
            torch_prof_record_shapes
            or torch_prof_profile_memory
            or torch_prof_with_stack
            or torch_prof_with_flops
            or torch_prof_memory_filename is not None
        ):
            profiler = TorchProfiler(
                torch_prof_folder,
                torch_prof_filename,
                torch_prof_remote_file_name,
                torch_prof_memory_filename,
                torch_prof_memory_remote_file_name,
                torch_prof_overwrite,
                torch_prof_use_gzip,
                torch_prof_record_shapes,
                torch_prof_profile_memory,
                torch_prof_with_stack,
                torch_prof_with_flops,
                num_traces,
            )
            self._callbacks.append(profiler)
        self._reset()

    @property
    def trace_handlers(self) -> tuple[TraceHandler, ...]:
        """The trace handlers. Set them before the profiler is bound to a run."""
        return self._trace_handlers

    @trace_handlers.setter
    def trace_handlers(self, handlers: TraceHandler | Sequence[TraceHandler]) -> None:
        self._trace_handlers = _validate_handlers(handlers)

    @property
    def resumption_batch_idx(self) -> int:
        """Number of batches of this epoch before the loaded checkpoint; 0 if the epoch began in this run."""
        epoch, batch = self._resumed
        return batch if self.state is not None and self.state.timestamp.epoch.value == epoch else 0

    @property
    def action(self) -> ProfilerAction:
        """The action of the current batch; ``SKIP`` outside of training."""
        return self._action

    @property
    def is_recording(self) -> bool:
        """Whether traces are being recorded."""
        return self._action in RECORDING

    def bind_to_state(self, state: State) -> None:
        """Bind the profiler to a run, and add it and its handlers to the callbacks. Called by the trainer.

        Args:
            state: The state of the run.
        """
        self._reset()
        self.state = state
        state.profiler = self
        callbacks = [self, *self._callbacks, *self.trace_handlers]
        registered = {id(callback) for callback in state.callbacks}
        state.callbacks.extend(part for part in callbacks if id(part) not in registered)

    def marker(
        self,
        name: str,
        actions: Sequence[ProfilerAction] = (
            ProfilerAction.WARMUP,
            ProfilerAction.ACTIVE,
            ProfilerAction.ACTIVE_AND_SAVE,
        ),
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] = (),
    ) -> Marker:
        """Return the marker of a name, to add custom code to the trace.

        ``with state.profiler.marker("augment"): ...`` records a span. Further calls with the same name return the same
        marker with the new arguments, so start and finish may be in different functions.

        Args:
            name: Name in the trace.
            actions: Actions of the schedule during which it records.
            record_instant_on_start: Whether to also record an instant at the start of a span.
            record_instant_on_finish: Whether to also record an instant at its end.
            categories: Categories, for viewers that filter by them.

        Raises:
            RuntimeError: The profiler is not bound to a run yet.
        """
        if self.state is None:
            raise RuntimeError("The profiler has no run yet. Pass it to Trainer(profiler=...), or call bind_to_state.")
        recording_actions = frozenset(map(ProfilerAction, actions))

        def should_record(state: State) -> bool:
            return self._action in recording_actions

        marker = self._markers.get(name)
        if marker is None:
            marker = Marker(
                self.state,
                should_record,
                self._recorders,
                name,
                record_instant_on_start,
                record_instant_on_finish,
                categories,
            )
            self._markers[name] = marker
        else:
            marker.should_record, marker.categories = should_record, tuple(categories)
            marker.record_instant_on_start = record_instant_on_start
            marker.record_instant_on_finish = record_instant_on_finish
        return marker

    def record_chrome_json_trace_file(self, filepath: str | Path) -> None:
        """Pass the trace of another profiler to the handlers, which add it to the merged trace.

        Args:
            filepath: A file in Chrome's JSON trace format, compressed if it ends in ``.gz``.
        """
        for handler in self.trace_handlers:
            handler.process_chrome_json_trace_file(Path(filepath))

    def __listens__(self, event: Event) -> bool:
        """Return whether the profiler acts at an event.

        Args:
            event: The event.
        """
        if event in (Event.INIT, Event.BEFORE_LOAD):
            return False
        # A listener between forward and loss would prevent running them as one graph.
        return not (self.fuses_forward_and_loss and event in (Event.AFTER_FORWARD, Event.BEFORE_LOSS))

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Wrap the handlers of an event so that loop phases and handler calls are recorded.

        Args:
            event: The event.
            handlers: The handlers of the event.
        """
        return self._spans.wrap(event, handlers)

    def begin_batch(self, event: Event, state: State, logger: Logger) -> None:
        """Get the action of the next batch from the schedule; called by the wrapped handlers.

        Args:
            event: The event of the loop; a custom loop may have no event before the batch is fetched.
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        if event is Event.BATCH_START and self._schedule_called:
            return
        length = state.train_phase.length
        if length is not None and state.timestamp.batch_in_epoch.value >= length:
            return  # end of the epoch: there is no next batch
        self._schedule_called = True
        action = ProfilerAction(self.schedule(state))
        if self._num_recorded and action not in RECORDING:
            self._save(state, logger)
        self._action = action
        for recorder in self._windowed:
            recorder.begin_batch(action, state)

    def note_resumption(self, state: State, logger: Logger) -> None:
        """Record the batch of the epoch at which the run resumes; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: The logger.
        """
        now = state.timestamp
        self._resumed = (int(now.epoch), int(now.batch_in_epoch))

    def save_if_due(self, state: State, logger: Logger) -> None:
        """Save the traces if the action is ``ACTIVE_AND_SAVE``; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        self._schedule_called = False
        self._num_recorded += self.is_recording
        if self._action is ProfilerAction.ACTIVE_AND_SAVE:
            self._save(state, logger)

    def save_last_window(self, state: State, logger: Logger) -> None:
        """Save the traces of an unfinished window; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        if self._num_recorded:
            self._save(state, logger)
        self._action, self._schedule_called = ProfilerAction.SKIP, False

    def close(self, state: State, logger: Logger) -> None:
        """Stop recording, also after an error."""
        self._spans.close_window()
        self._action = ProfilerAction.SKIP

    def _save(self, state: State, logger: Logger) -> None:
        """End the window and save its traces."""
        self._spans.close_window()
        self._action, self._num_recorded = ProfilerAction.SKIP, 0
        for recorder in self._windowed:
            recorder.save(state, logger)
        for recorder in self._windowed:
            recorder.clean_up()

    def _reset(self) -> None:
        """Reset to the state before a run."""
        self.state: State | None = None
        # PyTorch's profiler first, because the trace handlers merge its file.
        torch_profilers = [handler for handler in self._callbacks if isinstance(handler, TorchProfiler)]
        self._recorders: tuple[TraceHandler, ...] = (*torch_profilers, *self.trace_handlers)
        # A test double receives records but need not implement windows.
        self._windowed = [handler for handler in self._recorders if isinstance(handler, TraceHandler)]
        self._markers: dict[str, Marker] = {}
        self._spans = LoopSpans(self)
        self._action = ProfilerAction.SKIP
        self._schedule_called = False
        self._num_recorded = 0
        self._resumed = (0, 0)


def _validate_handlers(handlers: TraceHandler | Sequence[TraceHandler]) -> tuple[TraceHandler, ...]:
    found: tuple[TraceHandler, ...] = ensure_tuple(handlers)
    for handler in found:
        has_methods = all(callable(getattr(handler, name, None)) for name in _HANDLER_METHODS)
        if not isinstance(handler, TraceHandler) and not (has_methods and can_listen(handler, Callback)):
            remedy = f" Create an instance: {handler.__name__}(...)." if isinstance(handler, type) else ""
            raise TypeError(f"trace_handlers must be TraceHandler objects, but got {handler!r}.{remedy}")
    return found
