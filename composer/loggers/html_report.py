"""HTMLReport: write a page with curves, events and facts of the run when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from composer._html import check_plots, is_page, save_document
from composer.core.logger import LoggerDestination
from composer.core.run_log_file import RunFile
from composer.core.time import TimeUnit
from composer.history.live import LiveHistory
from composer.ledger.ledger import Ledger
from composer.ledger.segment import Segment
from composer.loggers._images import image_arrays
from composer.loggers._run_history import history_of
from composer.reports import ReportImage, run_report
from composer.reports.png import png_bytes
from composer.reports.run_images import newest, page_images
from composer.reports.run_time import find_ledger, seconds_by_category

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.run_event import RunEvent
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["HTMLReport"]

# Images of one call, and their largest side in pixels.
_MOST_IMAGES: Final = 8
_SIDE: Final = 512


class HTMLReport(LoggerDestination):
    """Writes a page about the run when training ends, also by an exception or Ctrl-C: one HTML file that opens offline.

    The page has the curves of all metrics with zoom, events (evaluations, checkpoints, resumptions, early stop, spikes)
    on their axis, the best checkpoint and how to load it, the newest matrices and tables, the last images that were
    logged, the model, hyperparameters and the environment. It is that of ``composer report``. Needs the extra
    ``report``. Metrics are delivered every 100 batches, so that a step does not wait for the device.

    An existing page of an earlier run with the same name is moved to ``report.1.html``; that of a resumed run is
    replaced, and its images stay. A file that is not a page is always moved. A resumed run shows the metrics that were
    logged before only if a :class:`.JSONLinesLogger` or :class:`.CSVLogger` wrote them to a file.

    Args:
        filename: Path of the page; may contain ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{node_rank}``,
            ``{world_size}`` and ``{local_world_size}``. If it is the same for all ranks, only rank 0 writes.
        remote_file_name: Name, with the same placeholders, under which loggers that store files receive it; None does
            not upload it.
        overwrite: Replace a page of an earlier run instead of moving it.

    Raises:
        MissingConditionalImportError: plotly is not installed.
        TypeError: A name is not a string.
        ValueError: A name has an unknown placeholder.

    >>> HTMLReport("{run_name}.html").filename
    '{run_name}.html'
    """

    __flush_interval__ = 100

    def __init__(
        self,
        filename: str = "{run_name}/report.html",
        remote_file_name: str | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        check_plots("HTMLReport")
        self._run_file = RunFile(filename, remote_file_name, overwrite, is_page)
        self._state: State | None = None
        self._logger: Logger | None = None
        self._images: list[ReportImage] = []
        self._has_unwritten = False

    @property
    def filename(self) -> str:
        """Path of the page, with placeholders until the run is known."""
        return self._run_file.name

    @property
    def __location__(self) -> str | None:
        """Path of the written page, if any."""
        return self._run_file.location

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank writes the page."""
        return self._run_file.is_active

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run, and have what it logs kept."""
        self._state, self._logger = state, logger
        if self._run_file.is_active and logger.recorder is None:
            logger.recorder = LiveHistory(state.run_name)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Move the page of an earlier run."""
        if self._run_file.is_active and self._run_file.path is None:
            self._open(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write the page."""
        self._write()

    def __suspend__(self) -> None:
        """Write the page, as an exception leaves the loop."""
        self._write()

    def __discard__(self) -> None:
        """Write nothing, as on ranks that do not write."""
        self._run_file.is_active = False

    def close(self, state: State, logger: Logger) -> None:
        """Write what came after the end of training, and release the run."""
        try:
            self._write()
        finally:
            self._run_file.close()
            self._state = self._logger = None
            self._images.clear()

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        self._has_unwritten = True

    def __receive_event__(self, event: RunEvent) -> None:
        self._has_unwritten = True

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        self._has_unwritten = True

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        self._has_unwritten = True

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        if not self._run_file.is_active:
            return
        for image in image_arrays(images, channels_last)[:_MOST_IMAGES]:
            stride = -(-max(image.shape[:2]) // _SIDE)
            self._images.append(ReportImage(name, step or 0, png_bytes(image[::stride, ::stride])))
        self._images = newest(self._images)
        self._has_unwritten = True

    def state_dict(self) -> dict[str, Any]:
        """Return the page of the run."""
        if self._state is None or not self._run_file.is_active:
            return {}
        return self._run_file.state_dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the page that the run wrote before it was resumed."""
        self._run_file.load_state_dict(state)

    def _open(self, state: State) -> None:
        """Move the page of an earlier run; of this one, keep the images up to the checkpoint."""
        is_continued = self._run_file.open(state) is not None
        path = self._run_file.path
        if is_continued and path is not None and path.is_file():
            now = state.timestamp.count(TimeUnit.BATCH)
            earlier = [one for one in page_images(path) if one.step is not None and one.step <= now]
            self._images = newest([*earlier, *self._images])

    def _write(self) -> None:
        """Write the page if anything was logged since it was written; complete at any time."""
        state, logger = self._state, self._logger
        if state is None or logger is None or not self._run_file.is_active:
            return
        logger.flush()
        if not self._has_unwritten:
            return
        self._has_unwritten = False
        if self._run_file.path is None:
            self._open(state)
        path = self._run_file.path
        assert path is not None
        history, clock = history_of(state, logger), state.clock
        clock.write()
        ledger = find_ledger(history) or Ledger([Segment(clock.segment, clock.started, clock.seconds())])
        page = run_report(history, time_by_category=seconds_by_category(ledger), images=self._images)
        save_document(page, path)
        self._run_file.upload(state, logger)
