"""Checkpoints that go to a store or server, and come back."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, TypeVar, cast

import torch.distributed as torch_dist

from composer import dist
from composer._secrets.masking import mask_text
from composer.checkpoint.folder_conflicts import REST, refuse_later
from composer.checkpoint.name_templates import PARTIAL, is_plain, pattern
from composer.checkpoint.ordering import Found, newest_first
from composer.core.timestamp import Timestamp
from composer.storage.downloads import LINK_SUFFIX, link_targets
from composer.storage.folder import Folder
from composer.storage.uploads import Job, UploadQueue
from composer.storage.uris import split
from composer.warnings import ComposerWarning

__all__ = ["RemoteCheckpoints"]

_log = logging.getLogger(__name__)

_PROBE = re.compile(r"\.composer-[0-9a-f]{8}")
# Files of a checkpoint that is a folder, by which a process that was killed while it removed one is told.
_SHARD = re.compile(r"\.metadata|__\d+_\d+\.distcp|mp_rank_.*|.*zero_pp_rank_\d+_.*|zero_to_.*\.py|latest")

R = TypeVar("R")


class RemoteCheckpoints:
    """A folder elsewhere. Checkpoints are written to a folder of this machine, and go from there in a thread.

    The link, a small text file, is written when its checkpoint has arrived, and what is superfluous is removed after
    that; so at any moment the link names a whole checkpoint. One that cannot be sent stays on this machine, and the
    error tells where. Of a checkpoint that is a folder each process sends what it has written, and the first, when all
    has arrived, the file that tells of the others.

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
    >>> [one.name for one in checkpoints.candidates("ep{epoch}.pt", "latest.pt")]
    ['memory://night/checkpoints/ep1.pt']
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
        self._group: torch_dist.ProcessGroup | None = None

    def wait_at_most(self, seconds: float) -> None:
        """Set how long waiting for transfers may take.

        Args:
            seconds: The time.
        """
        self._queue.close_timeout = seconds

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

    def path_of(self, name: str) -> str:
        """Return the URI of a checkpoint.

        Args:
            name: Its name here.
        """
        return self.folder.uri_of(name)

    def name_of(self, path: str) -> str | None:
        """Return the name of what a URI leads to, None if that is not in this folder.

        Args:
            path: Any path or URI.
        """
        name = path.removeprefix(f"{self.folder.uri}/")
        return name if name != path and is_plain(name) else None

    def present(self, names: Iterable[str]) -> list[str]:
        """Return those of some names under which there is a complete checkpoint.

        Args:
            names: The names.

        Raises:
            OSError: The store cannot be asked.
        """
        names = list(names)
        there = {one.name.removesuffix(f"/{REST}") for one in self.folder.entries(deep=True)} if names else set()
        return [name for name in names if is_plain(name) and name in there]

    def meet(self) -> None:
        """Prepare to send checkpoints that are folders; all processes must call this, and :meth:`publish` after it."""
        if self._group is None and dist.is_initialized():
            # The thread that sends asks the others while training goes on.
            self._group = cast("torch_dist.ProcessGroup", torch_dist.new_group(backend="gloo"))

    def publish(
        self, name: str, latest: str | None = None, superfluous: Iterable[str] = (), template: str | None = None
    ) -> None:
        """Send a checkpoint, point the link at it, and remove others; returns at once.

        While two are on their way, it waits, lest the disk of this machine fills.

        Args:
            name: Of the file or folder in :attr:`local`, which is removed when it has arrived.
            latest: Name of the link; None is none.
            superfluous: Names of the others.
            template: What these must match; None where there are none.
        """
        self._sent = [job for job in self._sent if not job.done]
        self._told(lambda: self._queue.wait(jobs=self._sent[:-1]))
        # Apart, for the next may have the same name.
        self._number += 1
        path = self.local / f"{self._number}" / name
        path.parent.mkdir(parents=True)
        (self.local / name).replace(path)
        job = self._send_parts(path, name) if path.is_dir() else self._send(path, name)
        self._sent.append(job)
        if dist.get_global_rank() != 0:
            return
        if latest is not None:
            job = self._link(f"{latest}{LINK_SUFFIX}", name, [job])
        self._discard(superfluous, template or "", [job])

    def finish(self, template: str, latest: str | None, damaged: Collection[str], superfluous: Iterable[str]) -> None:
        """Do what a killed process had left to do: point the link at the newest checkpoint, then remove others.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link; None where it is to be left alone.
            damaged: Names of checkpoints that cannot be read, to which no link is moved.
            superfluous: Names of those to remove.

        Raises:
            OSError: The store cannot be asked.
        """
        found, linked = self._complete(template), self._linked(latest)
        there, after = {one.name for one in found}, list[Job]()
        newest = next((one.name for one in newest_first(found, template, linked) if one.name in there), None)
        is_due = newest is not None and newest not in damaged and (linked is None or linked.name != newest)
        if latest is not None and newest is not None and is_due:
            after.append(self._link(f"{latest}{LINK_SUFFIX}", newest, []))
        self._discard([name for name in superfluous if name != newest], template, after)

    def candidates(self, template: str, latest: str | None) -> list[Found]:
        """Return the checkpoints to resume from, by their URIs, the newest first, see :func:`.newest_first`.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.

        Raises:
            OSError: The store cannot be asked.
        """
        ordered = newest_first(self._complete(template), template, self._linked(latest))
        return [Found(self.path_of(one.name), one.modified) for one in ordered]

    def refuse_later(self, template: str, timestamp: Timestamp, except_for: Collection[str]) -> None:
        """Refuse a folder with checkpoints of a later time than now, which must be of another run.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            timestamp: Now.
            except_for: Names that may be there.

        Raises:
            FileExistsError: There is a later checkpoint.
        """
        names = [one.name for one in self._complete(template)]
        refuse_later(names, self.folder.uri, template, timestamp, except_for=except_for)

    def remove_partial_files(self, template: str, latest: str | None) -> None:
        """Remove what a process that was killed had begun to send, where the place shows it.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Template of the link's name, or None.
        """
        links = () if latest is None else (f"{latest}{LINK_SUFFIX}",)
        for entry in self.folder.entries(deep=True):
            above, slash, last = entry.name.rpartition("/")
            found = PARTIAL.fullmatch(last)
            last = last if found is None else found[1]
            # A checkpoint that is a folder has partial files within.
            names = (f"{above}{slash}{last}", above)
            is_ours = any(pattern(one).fullmatch(name) for one in (template, *links) for name in names)
            if (found is not None and is_ours) or (not above and _PROBE.fullmatch(last)):
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
            group, self._group = self._group, None
            if group is not None and dist.is_initialized():
                torch_dist.destroy_process_group(group)
            local, self._local = self._local, None
            if local is not None and any(path.is_file() for path in local.rglob("*")):
                _log.warning("Checkpoints that could not be sent to %s are in %s.", mask_text(self.folder.uri), local)
            elif local is not None:
                shutil.rmtree(local, ignore_errors=True)

    def _shown(self, name: str) -> str:
        """The URI of a file for messages."""
        return mask_text(self.folder.uri_of(name))

    def _link(self, link: str, name: str, after: Iterable[Job]) -> Job:
        target = "../" * link.count("/") + name
        what = f"upload of {self._shown(link)}"
        return self._queue.submit(what, lambda: self.folder.write_text(link, target), after)

    def _discard(self, names: Iterable[str], template: str, after: list[Job]) -> None:
        for one in names:
            if is_plain(one) and pattern(template).fullmatch(one):
                self._queue.submit(f"removal of {self._shown(one)}", lambda one=one: self._remove(one), after)
            else:
                folder = mask_text(self.folder.uri)
                _log.warning("%s is not removed from %s: it is not a checkpoint of this run.", one, folder)

    def _remove(self, name: str) -> None:
        """Remove a checkpoint; none is left that looks complete and is not."""
        if self.folder.exists(name):
            self.folder.remove(name)
            return
        parts = Folder(self.path_of(name))
        names = parts.names()
        if REST in names or all(map(_SHARD.fullmatch, names)):
            parts.remove(REST)  # first, as it tells that the others are complete
            parts.remove_all()

    def _send(self, path: Path, name: str) -> Job:
        """Send a file, and remove it when it has arrived."""

        def send() -> None:
            try:
                self.folder.upload(path, name)
            except Exception as error:
                error.add_note(f"The checkpoint is in {str(path)!r}.")
                raise
            path.unlink()

        return self._queue.submit(f"upload of {self._shown(name)}", send)

    def _send_parts(self, path: Path, name: str) -> Job:
        """Send what this process has of a folder; in the first, the job ends when the whole folder is there."""
        mine = [one.name for one in sorted(path.iterdir()) if one.name != REST]
        jobs = [self._send(path / one, f"{name}/{one}") for one in mine]

        def agree() -> None:
            failed = [str(job.error) for job in jobs if job.error is not None]
            answers = dist.all_gather_object(failed, self._group)
            # Who has failed has told it.
            others = [text for rank, texts in enumerate(answers) for text in texts if rank != dist.get_global_rank()]
            if others or failed:
                raise RuntimeError(f"Not all parts of {self._shown(name)!r} have arrived: {'; '.join(others)}")

        met = self._queue.submit(f"upload of the other parts of {self._shown(name)}", agree, behind=jobs)
        if not (path / REST).is_file():
            return met
        return self._queue.submit(
            f"upload of {self._shown(name)}/{REST}",
            lambda: (self.folder.upload(path / REST, f"{name}/{REST}"), (path / REST).unlink()),
            [met],
        )

    def _complete(self, template: str) -> list[Found]:
        """The files, and the folders of which all has arrived, whose names match a template."""
        entries = self.folder.entries(deep=True)
        found = [Found(entry.name.removesuffix(f"/{REST}"), entry.modified) for entry in entries]
        return [one for one in found if pattern(template).fullmatch(one.name)]

    def _linked(self, latest: str | None) -> Found | None:
        """What the link names, by its name here, and when the link was written."""
        if latest is None:
            return None
        link = f"{latest}{LINK_SUFFIX}"
        try:
            since = self.folder.entry(link).modified
            targets = link_targets(self.path_of(link), self.folder.read_text(link).strip())
        except FileNotFoundError:
            return None
        target = next((target for target in targets if _exists(target)), targets[0])
        name = self.name_of(target)
        return None if name is None else Found(name, since)

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
    return Folder(folder).exists(name) or Folder(uri).exists(REST)
