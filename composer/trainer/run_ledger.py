"""RunLedger: the ledger of a trainer, in memory and in the checkpoint folder, over the restarts of the run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from composer import dist
from composer._secrets.masking import mask_text
from composer.checkpoint.ledger_file import LocalLedgerFile, RemoteLedgerFile, ledger_file_of
from composer.core.time import TimeUnit
from composer.ledger.clock import LedgerClock
from composer.ledger.ledger import Ledger, parse_segments
from composer.ledger.process_start import process_name
from composer.ledger.segment import Segment
from composer.trainer.resume import savers_of
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["RunLedger"]


class RunLedger:
    """The ledger of a trainer. The file begins with the first call of ``fit``, on rank 0, if checkpoints are saved.

    A trainer that only evaluates, or replays a step, has its ledger in memory only.

    Args:
        clock: Measures the time of this trainer.
        autoresume: Whether a start without a checkpoint continues the run of the folder, which crashed before its
            first one.

    >>> RunLedger(LedgerClock()).ledger().shares
    {<Category.START_UP: 'start_up'>: 1.0}
    """

    def __init__(self, clock: LedgerClock, *, autoresume: bool = False) -> None:
        self._clock, self._autoresume = clock, autoresume
        self._file: LocalLedgerFile | RemoteLedgerFile | None = None
        self._before: tuple[Segment | None, ...] = ()
        self._segment = Segment(clock.segment, clock.started, {}, "finished")

    def ledger(self) -> Ledger:
        """Return the ledger of the run until now."""
        return Ledger([*self._before, self._now()])

    def end(self) -> dict[str, float]:
        """Exchange the times of the ranks; return the goodput, for the event at the end. All ranks must call this."""
        self._clock.exchange()
        goodput = self.ledger().of_all_ranks()
        facts: dict[str, float] = {"goodput": round(goodput.share, 4)}
        if len(goodput.by_rank) > 1:
            worst = goodput.worst_rank
            facts |= {"worst_rank": worst, "goodput_of_worst_rank": round(goodput.by_rank[worst], 4)}
        return facts

    @contextlib.contextmanager
    def recording(self, state: State) -> Generator[None]:
        """Record how a call of ``fit`` ends.

        Args:
            state: The state of the run.
        """
        ended: Literal["finished", "stopped", "failed"] = "finished"
        try:
            yield
        except Exception:
            ended = "failed"
            raise
        except BaseException:  # a signal or Ctrl-C
            ended = "stopped"
            raise
        finally:
            batch = state.timestamp.count(TimeUnit.BATCH)
            self._segment = replace(self._segment, state=ended, last_batch=batch)
            # From now on, without a reference to the state: written after further calls.
            self._write_with(None)

    def begin(self, state: State) -> None:
        """Begin the segment in the file, or continue it in a later call of ``fit``; all ranks call this, rank 0 writes.

        Args:
            state: The state of the run, after its savers have checked the folder.
        """
        self._clock.exchange()
        batch = state.timestamp.count(TimeUnit.BATCH)
        self._segment = replace(self._segment, state="running", last_batch=batch)
        self.look_up(state)
        if self._file is not None:
            self._write_with(state)
            self._clock.write()

    def look_up(self, state: State) -> None:
        """Read what earlier processes of the run have written, on rank 0, without writing; once.

        Args:
            state: The state of the run, after its savers have checked the folder.
        """
        savers = savers_of(state)
        if not savers or dist.get_global_rank() != 0 or self._file is not None:
            return
        store = savers[0].store(state)
        try:
            is_ours = state.load_path is not None and store.name_of(state.load_path) is not None
            self._open(ledger_file_of(store), state.timestamp.count(TimeUnit.BATCH), is_ours=is_ours)
        except Exception as error:  # of any storage library
            self._give_up(error)

    def _open(self, file: LocalLedgerFile | RemoteLedgerFile, batch: int, *, is_ours: bool) -> None:
        """Read the segments of earlier processes, and decide whether this one continues their run."""
        entries = parse_segments(file.read())
        before, resumed = Ledger(entries), self._clock.resumed
        begins_run = True
        if before.segments:
            last = before.segments[-1]
            is_copy = file.folder != last.folder and file.is_copy_of(last.folder, last.id)
            is_known = resumed is not None and any(one.id == resumed.segment for one in before.segments)
            begins_run = is_copy or not (self._autoresume or is_known or (is_ours and batch > 0))
        if not begins_run:
            self._clock.repeat(before.repeated_until(batch) - batch)
        self._file, self._before = file, tuple(entries)
        self._segment = replace(
            self._segment,
            first_batch=batch,
            resumed=resumed,
            begins_run=begins_run,
            process=process_name(),
            folder=file.folder,
        )

    def _now(self) -> Segment:
        """Return the segment of this process until now."""
        ranks = self._clock.ranks
        return replace(self._segment, started=self._clock.started, seconds=self._clock.seconds(), ranks=ranks)

    def _write_with(self, state: State | None) -> None:
        """Let the clock write the segment, with the progress of a state."""
        file = self._file
        if file is None:
            return

        def write() -> None:
            if state is not None:
                self._segment = replace(self._segment, last_batch=state.timestamp.count(TimeUnit.BATCH))
            try:
                file.write(self._now().line())
            except Exception as error:  # of any storage library
                self._give_up(error)

        self._clock.write_by(write, file.interval)

    def _give_up(self, error: Exception) -> None:
        """Continue in memory only, since the file cannot be read or written."""
        self._file = None
        self._clock.write_by(None)
        message = (
            f"The ledger of the run cannot be written, so the time of this process will be missing in it; training "
            f"continues. {mask_text(f'{type(error).__name__}: {error}')}"
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)
