"""A queue of uploads that background threads run while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from composer._numbers import non_negative, whole_number
from composer._text import plural
from composer.storage.errors import is_transient
from composer.storage.retrying import call_with_retries

__all__ = ["Job", "UploadQueue"]


@dataclass(eq=False)
class Job:
    """A job in an :class:`UploadQueue`.

    Attributes:
        what: Description for messages: "upload of s3://bucket/ep1.pt".
        action: The function to call.
        after: Jobs that must have succeeded first.
        after_any: Jobs that must have finished first, successfully or not.
        done: Whether it has finished, successfully or not.
        error: The exception if it failed, or None.

    >>> Job("upload of memory://bucket/ep1.pt", lambda: None).done
    False
    """

    what: str
    action: Callable[[], object]
    after: tuple[Job, ...] = ()
    after_any: tuple[Job, ...] = ()
    done: bool = False
    error: Exception | None = None


class _SkippedError(RuntimeError):
    """A job was skipped because a job that it depends on failed."""


class UploadQueue:
    """Runs jobs in daemon threads, concurrently, in dependency order, with retries.

    A transient failure is retried after a pause that doubles each time; other failures end the job. A job whose
    dependency failed is skipped, so a link never points to a file that was not uploaded. :meth:`wait` and :meth:`poll`
    raise the first failure, with the others as notes.

    The threads start with the first job, stop with :meth:`close`, and never keep the process from exiting.

    Args:
        num_workers: Number of concurrent jobs.
        num_attempts: Maximum number of attempts per job.
        initial_backoff: Pause after the first failure in seconds; doubles with each attempt.
        close_timeout: Maximum time to wait for the queue, in seconds.

    Raises:
        ValueError: A number is out of its range.

    >>> done = []
    >>> queue = UploadQueue()
    >>> first = queue.submit("upload of a file", lambda: done.append("file"))
    >>> _ = queue.submit("upload of its link", lambda: done.append("link"), after=[first])
    >>> queue.close()
    >>> done
    ['file', 'link']
    """

    def __init__(
        self,
        num_workers: int = 2,
        num_attempts: int = 3,
        *,
        initial_backoff: float = 1.0,
        close_timeout: float = 3600.0,
    ) -> None:
        self.num_workers = whole_number("num_concurrent_uploads", num_workers, minimum=1)
        self.num_attempts = whole_number("num_attempts", num_attempts, minimum=1)
        self.initial_backoff = non_negative("initial_backoff", initial_backoff)
        self.close_timeout = non_negative("close_timeout", close_timeout)
        self._changed = threading.Condition()
        self._jobs: list[Job] = []  # waiting and running jobs, in order
        self._running: set[Job] = set()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._failures: list[Job] = []  # not reported yet

    def submit(
        self, what: str, action: Callable[[], object], after: Iterable[Job] = (), after_any: Iterable[Job] = ()
    ) -> Job:
        """Add a job; returns immediately.

        Args:
            what: Description for messages.
            action: The function to call, in another thread; may be called again if it fails.
            after: Jobs of this queue that must have succeeded first.
            after_any: Jobs of this queue that must have finished first, successfully or not.
        """
        job = Job(what, action, tuple(after), tuple(after_any))
        with self._changed:
            self._jobs.append(job)
            if len(self._threads) < min(self.num_workers, len(self._jobs)):
                name = f"composer-upload-{len(self._threads)}"
                thread = threading.Thread(target=self._work, args=(self._stop,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return job

    @property
    def pending(self) -> list[Job]:
        """The unfinished jobs, in the order of submission."""
        with self._changed:
            return self._jobs.copy()

    def poll(self) -> None:
        """Raise the failure of a finished job, if it was not reported yet.

        Raises:
            Exception: The failure.
        """
        with self._changed:
            failures, self._failures = self._failures, []
        roots = [job for job in failures if not isinstance(job.error, _SkippedError)]
        if not failures:
            return
        first, *others = roots or failures
        assert first.error is not None
        first.error.add_note(f"The {first.what} failed.")
        for job in [*others, *(job for job in failures if roots and job not in roots)]:
            first.error.add_note(f"The {job.what} failed too: {job.error}")
        raise first.error

    def wait(self, timeout: float | None = None, jobs: Iterable[Job] | None = None) -> None:
        """Wait until jobs have finished.

        Args:
            timeout: Maximum time in seconds; ``close_timeout`` by default.
            jobs: The jobs to wait for; None is all.

        Raises:
            TimeoutError: Some jobs have not finished; they continue.
            Exception: The failure of a job.
        """
        limit = self.close_timeout if timeout is None else timeout
        selected = None if jobs is None else list(jobs)
        with self._changed:
            ended = self._changed.wait_for(
                lambda: not self._jobs if selected is None else all(job.done for job in selected), limit
            )
            late = [job.what for job in self._jobs if not job.done and (selected is None or job in selected)]
        self.poll()
        if not ended:
            raise TimeoutError(f"After {limit:g} s, {plural(len(late), 'job')} had not finished: {_some(late)}.")

    def close(self, timeout: float | None = None) -> None:
        """Wait until all jobs have finished, and stop the threads; unfinished jobs are abandoned.

        Args:
            timeout: Maximum time in seconds; ``close_timeout`` by default.

        Raises:
            TimeoutError: Some jobs had not finished.
            Exception: The failure of a job.
        """
        try:
            self.wait(timeout)
        finally:
            with self._changed:
                self._stop.set()
                # A thread that is still working belongs to the old list, which is dropped.
                self._jobs, self._running, self._stop = [], set(), threading.Event()
                threads, self._threads = self._threads, []
                self._changed.notify_all()
            for thread in threads:
                thread.join(timeout=0.5)

    def _work(self, stop: threading.Event) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: stop.is_set() or self._next() is not None)
                if stop.is_set():
                    return
                job = self._next()
                assert job is not None
                self._running.add(job)
            error = self._do(job, stop)
            with self._changed:
                job.error, job.done = error, True
                if job in self._running:
                    self._running.remove(job)
                    self._jobs.remove(job)
                    if error is not None:
                        self._failures.append(job)
                # Release files and memory of the action; later jobs keep a reference to this job.
                job.action, job.after, job.after_any = _nothing, (), ()
                self._changed.notify_all()

    def _next(self) -> Job | None:
        free = (job for job in self._jobs if job not in self._running)
        return next((job for job in free if all(before.done for before in (*job.after, *job.after_any))), None)

    def _do(self, job: Job, stop: threading.Event) -> Exception | None:
        failed = next((before for before in job.after if before.error is not None), None)
        if failed is not None:
            return _SkippedError(f"it depends on the {failed.what}, which failed")

        def should_retry(error: Exception) -> bool:
            return is_transient(error) and not stop.is_set()

        try:
            call_with_retries(
                job.action, should_retry, self.num_attempts, self.initial_backoff, self.initial_backoff / 2, stop.wait
            )
        except Exception as error:
            return error
        return None


def _nothing() -> None:
    pass


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other')}" if len(names) > 3 else "")
