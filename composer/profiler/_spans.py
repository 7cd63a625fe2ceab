"""Record the profiler's automatic spans: phases of the training loop, and calls of algorithms and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.profiler.schedule import RECORDING

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.profiler.marker import Marker
    from composer.profiler.profiler import Profiler

__all__ = ["EPOCH", "LoopSpans"]

EPOCH: Final = "event/epoch"

# These contain many windows, or none.
_NO_SPANS: Final = frozenset({"init", "load", "fit", "iteration", "epoch"})
# All open spans end at these events, even if their end event did not fire: at the end of the data, nothing is fetched.
_FRESH_STARTS: Final = (Event.BEFORE_DATALOADER, Event.EPOCH_END, Event.FIT_END)


class LoopSpans:
    """Wraps the handlers of an event so that they are recorded in the trace.

    ``event/forward`` lasts from the end of the ``BEFORE_FORWARD`` handlers to the start of the ``AFTER_FORWARD``
    handlers; likewise for the other pairs of events. ``callback/SpeedMonitor/batch_end`` is one call. ``event/epoch``
    starts with the first batch of an epoch if it is recorded, and ends with the epoch or the window.

    Args:
        profiler: The profiler whose markers record the spans.

    >>> from composer import State
    >>> from composer.profiler import Profiler
    >>> profiler = Profiler(lambda state: "active", [], sys_prof_cpu=False)
    >>> profiler.bind_to_state(State(model=torch.nn.Linear(1, 1)))
    >>> len(LoopSpans(profiler).wrap(Event.BATCH_CHECKPOINT, (print, print)))
    2
    """

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._open: list[tuple[str, Marker]] = []
        self._epoch: Marker | None = None

    def wrap(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Return the handlers to call instead of the given ones.

        Args:
            event: The event.
            handlers: The handlers of the event; the profiler's placeholders are removed.
        """
        profiler = self._profiler
        wrapped = [self._traced(handler, event) for handler in handlers if owner_of(handler) is not profiler]
        name = event.canonical_name
        before: list[Handler] = []
        after: list[Handler] = []
        if event in _FRESH_STARTS:
            before.append(lambda state, logger: self.close())
        if event in (Event.BEFORE_DATALOADER, Event.BATCH_START):
            before.append(lambda state, logger: profiler.begin_batch(event, state, logger))
            before.append(lambda state, logger: self._begin_epoch(state))
        if event is Event.EPOCH_END:
            before.append(lambda state, logger: self._end_epoch())
        if name not in _NO_SPANS:
            if event.is_after_event:
                before.append(lambda state, logger: self._finish(name))
            elif event.is_before_event:
                after.append(self._opening(event, name))
        if event is Event.BATCH_END:
            after.append(profiler.save_if_due)
        elif event is Event.AFTER_LOAD:
            after.append(profiler.note_resumption)
        elif event is Event.FIT_END:
            after.append(profiler.save_last_window)
        return (*(owned(h, profiler) for h in before), *wrapped, *(_owned_by_profiler(h, profiler) for h in after))

    def close(self) -> None:
        """End all open spans of a batch."""
        while self._open:
            self._open.pop()[1].finish()

    def close_window(self) -> None:
        """End all open spans, including the epoch."""
        self.close()
        self._end_epoch()

    def _begin_epoch(self, state: State) -> None:
        """Start the span of an epoch at its first batch."""
        if self._profiler.is_recording and self._epoch is None and state.timestamp.batch_in_epoch.value == 0:
            self._epoch = self._profiler.marker(EPOCH, RECORDING, categories=("event",))
            self._epoch.__enter__()

    def _end_epoch(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.finish()

    def _finish(self, name: str) -> None:
        """End a span and the open spans inside it."""
        opened = [key for key, _ in self._open]
        if name in opened:
            first = opened.index(name)
            while len(self._open) > first:
                self._open.pop()[1].finish()

    def _opening(self, event: Event, name: str) -> Handler:
        profiler, shown = self._profiler, name
        if profiler.fuses_forward_and_loss and event is Event.BEFORE_FORWARD:
            shown, name = "forward_and_loss", "loss"
        marker = profiler.marker(f"event/{shown}", RECORDING, categories=("event",))

        def begin(state: State, logger: Logger) -> None:
            if profiler.is_recording:
                marker.__enter__()
                self._open.append((name, marker))

        return begin

    def _traced(self, handler: Handler, event: Event) -> Handler:
        """Wrap a handler so that its call is recorded as a span."""
        profiler, owner = self._profiler, owner_of(handler)
        category = "algorithm" if isinstance(owner, Algorithm) else "callback"
        # Handlers without an owner pass metrics to the loggers.
        who = "Logger" if owner is None else type(owner).__name__
        marker = profiler.marker(f"{category}/{who}/{event.value}", RECORDING, categories=(category,))

        def traced(state: State, logger: Logger) -> object:
            if not profiler.is_recording:
                return handler(state, logger)
            with marker:
                return handler(state, logger)

        return owned(traced, owner)


def _owned_by_profiler(handler: Handler, profiler: Profiler) -> Handler:
    """Mark a function as owned by the profiler, unless it is one of its methods."""
    return handler if owner_of(handler) is profiler else owned(handler, profiler)
