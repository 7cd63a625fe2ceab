"""A queue of uploads, done by threads while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from composer._text import non_negative, plural, positive
from composer.storage.errors import is_transient
from composer.storage.retrying import call_with_retries

__all__ = ["Job", "UploadQueue"]


@dataclass(eq=False)
class Job:
    """One thing that a queue does.

    Attributes:
        what: What it is, for messages: "upload of s3://bucket/ep1.pt".
        action: Does it.
        after: Jobs that must have succeeded before.
        behind: Jobs that must have ended before, well or not.
        done: Whether it has ended, well or not.
        error: Why it failed, or None.

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
    """A job was not begun because one that it waits for failed."""


class UploadQueue:
    """Does jobs in threads: several at once, each after those that it depends on, and again when they fail.

    A failure that another attempt may mend is followed by one, after a pause that doubles; other failures end the job
    at once. A job whose predecessor failed is left out, so a link never points at what has not arrived. Whoever waits
    or asks gets the first failure, with the others as notes.

    The threads are made with the first job, end with :meth:`close`, and never keep the process from exiting.

    Args:
        num_workers: How many jobs are done at once.
        num_attempts: How often each is tried.
        initial_backoff: The pause after the first failure in seconds; each is twice the one before.
        close_timeout: How long waiting for the queue may take, in seconds.

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
        self.num_workers = positive("num_concurrent_uploads", num_workers)
        self.num_attempts = positive("num_attempts", num_attempts)
        self.initial_backoff = non_negative("initial_backoff", initial_backoff)
        self.close_timeout = non_negative("close_timeout", close_timeout)
        self._changed = threading.Condition()
        self._jobs: list[Job] = []  # waiting and running, in their order
        self._running: set[Job] = set()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._failures: list[Job] = []  # that nobody was told of

    def submit(
        self, what: str, action: Callable[[], object], after: Iterable[Job] = (), after_any: Iterable[Job] = ()
    ) -> Job:
        """Add a job; returns at once.

        Args:
            what: What it is, for messages.
            action: Does it, in another thread; may be called again after it has failed.
            after: Jobs of this queue that must have succeeded before.
            behind: Jobs of this queue that must have ended before, well or not.
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
        """The jobs that have not ended, in the order in which they came."""
        with self._changed:
            return self._jobs.copy()

    def poll(self) -> None:
        """Raise the failure of a job that has ended, if nobody was told of it.

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
        """Wait until jobs have ended.

        Args:
            timeout: How long at most, in seconds; ``close_timeout`` by default.
            jobs: Those to wait for; None is all.

        Raises:
            TimeoutError: Some have not ended; they go on.
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
            raise TimeoutError(f"After {limit:g} s, {plural(len(late), 'job')} had not ended: {_some(late)}.")

    def close(self, timeout: float | None = None) -> None:
        """Wait until all jobs have ended, and end the threads; what has not ended in time is given up.

        Args:
            timeout: How long at most, in seconds; ``close_timeout`` by default.

        Raises:
            TimeoutError: Some had not ended.
            Exception: The failure of a job.
        """
        try:
            self.wait(timeout)
        finally:
            with self._changed:
                self._stop.set()
                # Whoever is still at work belongs to the old list, and finds it gone.
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
                # The action may hold files and memory, and the job lives as long as those that came after it.
                job.action, job.after, job.after_any = _nothing, (), ()
                self._changed.notify_all()

    def _next(self) -> Job | None:
        free = (job for job in self._jobs if job not in self._running)
        return next((job for job in free if all(before.done for before in (*job.after, *job.after_any))), None)

    def _do(self, job: Job, stop: threading.Event) -> Exception | None:
        failed = next((before for before in job.after if before.error is not None), None)
        if failed is not None:
            return _SkippedError(f"it waits for the {failed.what}, which failed")

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
