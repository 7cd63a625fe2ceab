"""Checkpoints that go to a store or server, and come back."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, TypeVar

from composer import dist
from composer.checkpoint.folders import counters, refuse_later
from composer.core.timestamp import Timestamp
from composer.storage.folder import Folder
from composer.storage.transfer import LINK_SUFFIX, link_targets, remove
from composer.storage.uploads import Job, UploadQueue
from composer.storage.uris import split
from composer.warnings import ComposerWarning

__all__ = ["RemoteCheckpoints"]

_log = logging.getLogger(__name__)

_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")

R = TypeVar("R")


class RemoteCheckpoints:
    """A folder elsewhere. Checkpoints are written to a folder of this machine, and go from there in a thread.

    The link, a small text file, is written when its checkpoint has arrived, and what is superfluous is removed after
    that; so at any moment the link names a whole checkpoint. One that cannot be sent stays on this machine, and the
    error tells where.

    Args:
        uri: Of the folder.
        on_failure: Whether a checkpoint that cannot be sent ends the training ("raise") or is a warning ("warn").
        num_attempts: How often a transfer is tried.
        initial_backoff: The pause after the first failure in seconds; each is twice the one before.
        close_timeout: How long waiting for transfers may take, in seconds.

    >>> checkpoints = RemoteCheckpoints("memory://night/checkpoints")
    >>> _ = (checkpoints.local / "ep1.pt").write_bytes(b"weights")
    >>> checkpoints.publish("ep1.pt", latest="latest.pt")
    >>> checkpoints.close()
    >>> checkpoints.newest("ep{epoch}.pt", "latest.pt")
    'memory://night/checkpoints/ep1.pt'
    """

    def __init__(
        self,
        uri: str,
        on_failure: Literal["raise", "warn"] = "raise",
        *,
        num_attempts: int = 5,
        initial_backoff: float = 1.0,
        close_timeout: float = 3600.0,
    ) -> None:
        self.folder = Folder(uri)
        self._on_failure = on_failure
        # One worker: the order of the jobs is that in which they are done.
        self._queue = UploadQueue(1, num_attempts, initial_backoff=initial_backoff, close_timeout=close_timeout)
        self._local: Path | None = None
        self._sent: list[Job] = []
        self._number = 0

    @property
    def local(self) -> Path:
        """The folder of this machine that checkpoints are written to."""
        if self._local is None:
            self._local = Path(tempfile.mkdtemp(prefix="composer-checkpoints-"))
        return self._local

    def probe(self) -> None:
        """Write a small file and remove it, to learn before training whether that is allowed.

        Raises:
            OSError: It is not.
        """
        self.folder.probe()

    def publish(self, name: str, latest: str | None = None, superfluous: Iterable[str] = ()) -> None:
        """Send a checkpoint, point the link at it, and remove others; returns at once.

        While two are on their way, it waits, lest the disk of this machine fills.

        Args:
            name: Of the file in :attr:`local`, which is removed when it has arrived.
            latest: Name of the link; None is none.
            superfluous: Paths or URIs of the others.
        """
        self._sent = [job for job in self._sent if not job.done]
        self._told(lambda: self._queue.wait(jobs=self._sent[:-1]))
        # Apart, for the next may have the same name.
        self._number += 1
        path = self.local / f"{self._number}" / name
        path.parent.mkdir(parents=True)
        (self.local / name).replace(path)

        def send() -> None:
            try:
                self.folder.upload(path, name)
            except Exception as error:
                error.add_note(f"The checkpoint is in {str(path)!r}.")
                raise
            path.unlink()

        job = self._queue.submit(f"upload of {self.folder.uri_of(name)}", send)
        self._sent.append(job)
        if latest is not None:
            link = f"{latest}{LINK_SUFFIX}"
            target = "../" * link.count("/") + name
            job = self._queue.submit(
                f"upload of {self.folder.uri_of(link)}", lambda: self.folder.write_text(link, target), [job]
            )
        for one in superfluous:
            self._queue.submit(f"removal of {one}", lambda one=one: remove(one), [job])

    def discard(self, paths: Iterable[str]) -> None:
        """Remove checkpoints; returns at once.

        Args:
            paths: Paths or URIs.
        """
        for one in paths:
            self._queue.submit(f"removal of {one}", lambda one=one: remove(one))

    def newest(self, filename: str, latest: str | None) -> str | None:
        """Return the URI of the newest checkpoint, for all processes; None if there is none.

        That is what the link names, unless a crash has come between a checkpoint and its link. The first process looks.

        Args:
            filename: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.

        Raises:
            OSError: The store cannot be asked.
        """
        answer: list[str | None] = [None, None]
        failure: Exception | None = None
        if dist.get_global_rank() == 0:
            try:
                answer[0] = self._newest(filename, latest)
            except Exception as error:
                failure, answer[1] = error, f"{type(error).__name__}: {error}"
        dist.broadcast_object_list(answer)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise RuntimeError(f"The first process could not look for checkpoints in {self.folder.uri!r}: {answer[1]}")
        return answer[0]

    def refuse_later(self, filename: str, timestamp: Timestamp, except_for: Collection[str]) -> None:
        """Refuse a folder with checkpoints of a later time than now, which must be of another run.

        Args:
            filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
            timestamp: Now.
            except_for: Names that may be there.

        Raises:
            FileExistsError: There is a later file.
        """
        names = [entry.name for entry in self.folder.entries()]
        refuse_later(names, self.folder.uri, filename, timestamp, except_for=except_for)

    def remove_partial_files(self, filename: str, latest: str | None) -> None:
        """Remove what a process that was killed had begun to send, where the place shows it.

        Args:
            filename: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.
        """
        for entry in self.folder.entries():
            found = _PARTIAL.fullmatch(entry.name)
            if found is not None and (counters(found[1], filename) or found[1] == f"{latest}{LINK_SUFFIX}"):
                self.folder.remove(entry.name)

    def poll(self) -> None:
        """Tell of a failure, if there was one.

        Raises:
            OSError: A checkpoint could not be sent.
        """
        self._told(self._queue.poll)

    def wait(self) -> None:
        """Wait until everything has arrived.

        Raises:
            OSError: A checkpoint could not be sent.
            TimeoutError: It takes too long.
        """
        self._told(self._queue.wait)

    def close(self) -> None:
        """Wait until everything has arrived, and remove the folder of this machine unless something has not.

        Raises:
            OSError: A checkpoint could not be sent.
            TimeoutError: It takes too long.
        """
        try:
            self._told(self._queue.close)
        finally:
            local, self._local = self._local, None
            if local is not None and any(path.is_file() for path in local.rglob("*")):
                _log.warning("Checkpoints that could not be sent to %s are in %s.", self.folder.uri, local)
            elif local is not None:
                shutil.rmtree(local, ignore_errors=True)

    def _newest(self, filename: str, latest: str | None) -> str | None:
        found = [entry for entry in self.folder.entries() if counters(entry.name, filename)]
        linked = None if latest is None else self._linked(f"{latest}{LINK_SUFFIX}")
        if latest is not None and linked is not None:
            since, come = self.folder.entry(f"{latest}{LINK_SUFFIX}").modified, counters(split(linked)[1], filename)
            found = [one for one in found if one.modified > since and counters(one.name, filename) > come]
        # Many stores count whole seconds; then the counters in the names tell.
        newest = max(found, key=lambda one: (one.modified, counters(one.name, filename)), default=None)
        return linked if newest is None else self.folder.uri_of(newest.name)

    def _linked(self, link: str) -> str | None:
        """The URI of the checkpoint that a link names, if both are there."""
        try:
            targets = link_targets(self.folder.uri_of(link), self.folder.read_text(link).strip())
        except FileNotFoundError:
            return None
        return next((target for target in targets if _exists(target)), None)

    def _told(self, action: Callable[[], R]) -> R | None:
        try:
            return action()
        except Exception as error:
            error.add_note("A checkpoint could not be sent; earlier ones are as they were.")
            if self._on_failure == "raise":
                raise
            notes = " ".join([str(error), *getattr(error, "__notes__", ())])
            warnings.warn(notes, ComposerWarning, stacklevel=3)
            return None


def _exists(uri: str) -> bool:
    folder, name = split(uri)
    return Folder(folder).exists(name)
