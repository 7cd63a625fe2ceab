"""Profiler: records in some batches where their time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    """Records in some batches of the training where their time goes, to be looked at in https://ui.perfetto.dev.

    Given to the :class:`.Trainer` as ``profiler=``; then it is ``state.profiler``. In the batches that the schedule
    names it records, each with its begin and its end:

    - the parts of the loop: ``event/dataloader``, ``event/batch``, ``event/train_batch``, ``event/forward``,
      ``event/loss``, ``event/backward``, and those of evaluations in between;
    - every call of an algorithm, callback or logger: ``algorithm/{class}/{event}``, ``callback/{class}/{event}``;
    - what :meth:`marker` marks;
    - the operators of PyTorch, on the host and on the accelerator, with :class:`.TorchProfiler`;
    - curves of the machine's load, with :class:`.SystemProfiler`.

    A window begins before its first batch is fetched and ends with ``BATCH_END`` of its last, or of the training; then
    the handlers write their files. All processes of a run have to have the same windows. In batches left alone the
    profiler asks at each event whether it is on; a run without a profiler pays nothing. ``BATCH_END`` of the last
    batch of a window waits for the accelerator.

    Where forward and loss are compiled as one graph, they show as one span ``event/forward_and_loss``.

    Args:
        schedule: ``(state) -> ProfilerAction``, asked before each batch is fetched; see :func:`.cyclic_schedule`.
        trace_handlers: What takes the records, such as a :class:`.JSONTraceHandler`; a test double need only have the
            methods by which events and records reach it.
        sys_prof_cpu: Whether to record the load of the processor. This and the next three need the extra ``system``.
        sys_prof_memory: Whether to record the memory in use.
        sys_prof_disk: Whether to record what is read from and written to disks.
        sys_prof_net: Whether to record what is sent and received.
        sys_prof_stats_thread_interval_seconds: Time between two points of these curves, in seconds.
        torch_prof_folder: Of the traces of PyTorch's profiler; this and the next as for :class:`.TorchProfiler`.
        torch_prof_filename: Their names.
        torch_prof_remote_file_name: Their names at the loggers that keep files; None hands them none.
        torch_prof_memory_filename: Name of the timelines of memory; None writes none.
        torch_prof_memory_remote_file_name: Their names at the loggers that keep files.
        torch_prof_overwrite: Whether files of an earlier run are replaced.
        torch_prof_use_gzip: Whether to compress the traces.
        torch_prof_record_shapes: Whether to record the shapes of inputs. Where this and the next three are all false,
            PyTorch's profiler is not used.
        torch_prof_profile_memory: Whether to record the allocations of memory.
        torch_prof_with_stack: Whether to record the lines of code.
        torch_prof_with_flops: Whether to estimate the operations of matrix products and convolutions.
        torch_prof_num_traces_to_keep: Number of traces that are kept, the newest; -1 is all.

    Attributes:
        schedule: As given.
        state: The state of the run; None before there is one.
        fuses_forward_and_loss: Whether forward and loss are compiled as one graph; a trainer sets it.

    Raises:
        TypeError: ``schedule`` cannot be called, or a handler is none.
        ValueError: An argument is impossible.
        MissingConditionalImportError: psutil is not installed, which the curves need.

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
                torch_prof_num_traces_to_keep,
            )
            self._callbacks.append(profiler)
        self._reset()

    @property
    def trace_handlers(self) -> tuple[TraceHandler, ...]:
        """What takes the records; to be set before the profiler is bound to a run."""
        return self._trace_handlers

    @trace_handlers.setter
    def trace_handlers(self, handlers: TraceHandler | Sequence[TraceHandler]) -> None:
        self._trace_handlers = _validate_handlers(handlers)

    @property
    def resumption_batch_idx(self) -> int:
        """How many batches of this epoch were trained before a checkpoint was loaded; 0 in an epoch begun here."""
        epoch, batch = self._resumed
        return batch if self.state is not None and self.state.timestamp.epoch.value == epoch else 0

    @property
    def action(self) -> ProfilerAction:
        """What the schedule says of the batch in work; skip outside of training."""
        return self._action

    @property
    def is_recording(self) -> bool:
        """Whether traces are being recorded."""
        return self._action in RECORDING

    def bind_to_state(self, state: State) -> None:
        """Become the profiler of a run, and add all that belongs to it to the callbacks; a trainer does so.

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
        """Return the marker of a name, by which code of one's own shows in the trace.

        ``with state.profiler.marker("augment"): ...`` is a span. Asked again for a name it returns the same marker, so
        that start and finish may be in different functions, and takes over the other arguments.

        Args:
            name: Name in the trace.
            actions: Under which actions of the schedule it records.
            record_instant_on_start: Whether the begin of a span is recorded as a moment too.
            record_instant_on_finish: Whether its end is.
            categories: What it belongs to, for viewers that filter by it.

        Raises:
            RuntimeError: The profiler is not bound to a run yet.
        """
        if self.state is None:
            raise RuntimeError("The profiler has no run yet; give it to Trainer(profiler=...), or call bind_to_state.")
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
        """Hand the trace of another profiler to the handlers; a merged trace contains it.

        Args:
            filepath: A file in the JSON format of Chrome's traces, compressed if it ends in ``.gz``.
        """
        for handler in self.trace_handlers:
            handler.process_chrome_json_trace_file(Path(filepath))

    def __listens__(self, event: Event) -> bool:
        """Tell whether the profiler has to be asked at an event.

        Args:
            event: The event asked about.
        """
        if event in (Event.INIT, Event.BEFORE_LOAD):
            return False
        # A listener between the two would keep them from running as one graph.
        return not (self.fuses_forward_and_loss and event in (Event.AFTER_FORWARD, Event.BEFORE_LOSS))

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Draw the parts of the loop and those who act in it.

        Args:
            event: The event.
            handlers: What would be called.
        """
        return self._spans.wrap(event, handlers)

    def begin_batch(self, event: Event, state: State, logger: Logger) -> None:
        """Ask the schedule about the next batch; called by the wrapped handlers.

        Args:
            event: Where in the loop; a loop of one's own may have no event before the batch is fetched.
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        if event is Event.BATCH_START and self._schedule_called:
            return
        length = state.train_phase.length
        if length is not None and state.timestamp.batch_in_epoch.value >= length:
            return  # the data is at its end, and there is no next batch
        self._schedule_called = True
        action = ProfilerAction(self.schedule(state))
        if self._num_recorded and action not in RECORDING:
            self._save(state, logger)
        self._action = action
        for recorder in self._windowed:
            recorder.begin_batch(action, state)

    def note_resumption(self, state: State, logger: Logger) -> None:
        """Note where in the epoch the run goes on; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: The logger.
        """
        now = state.timestamp
        self._resumed = (int(now.epoch), int(now.batch_in_epoch))

    def save_if_due(self, state: State, logger: Logger) -> None:
        """Save if the schedule says so; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        self._schedule_called = False
        self._num_recorded += self.is_recording
        if self._action is ProfilerAction.ACTIVE_AND_SAVE:
            self._save(state, logger)

    def save_last_window(self, state: State, logger: Logger) -> None:
        """Save what a window that has not ended holds; called by the wrapped handlers.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        if self._num_recorded:
            self._save(state, logger)
        self._action, self._schedule_called = ProfilerAction.SKIP, False

    def close(self, state: State, logger: Logger) -> None:
        """Record no longer, also after an error."""
        self._spans.close_window()
        self._action = ProfilerAction.SKIP

    def _save(self, state: State, logger: Logger) -> None:
        """End the window."""
        self._spans.close_window()
        self._action, self._num_recorded = ProfilerAction.SKIP, 0
        for recorder in self._windowed:
            recorder.save(state, logger)
        for recorder in self._windowed:
            recorder.clean_up()

    def _reset(self) -> None:
        """Begin without a run."""
        self.state: State | None = None
        # PyTorch's first, whose file those after it take.
        torch_profilers = [handler for handler in self._callbacks if isinstance(handler, TorchProfiler)]
        self._recorders: tuple[TraceHandler, ...] = (*torch_profilers, *self.trace_handlers)
        # A test double takes records, and need not know of windows.
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
            remedy = f" Make an object of it: {handler.__name__}(...)." if isinstance(handler, type) else ""
            raise TypeError(f"trace_handlers must be TraceHandler objects, but got {handler!r}.{remedy}")
    return found
