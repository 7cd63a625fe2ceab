"""A remote checkpoint folder (object store or server): upload checkpoints in the background, list and delete them."""

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
from composer.checkpoint.folder_conflicts import MANIFEST, raise_if_later
from composer.checkpoint.name_templates import PARTIAL, is_plain, pattern
from composer.checkpoint.ordering import Found, newest_first
from composer.core.timestamp import Timestamp
from composer.ledger.ledger import FILENAME
from composer.storage.downloads import LINK_SUFFIX, link_targets
from composer.storage.errors import is_transient
from composer.storage.folder import Folder
from composer.storage.retrying import call_with_retries
from composer.storage.uploads import Job, UploadQueue
from composer.storage.uris import split
from composer.warnings import ComposerWarning

__all__ = ["RemoteCheckpoints"]

_log = logging.getLogger(__name__)

_PROBE = re.compile(r"\.composer-[0-9a-f]{8}")
# Files of a sharded checkpoint, to recognize one that a killed process had partly deleted.
_SHARD = re.compile(r"\.metadata|__\d+_\d+\.distcp|mp_rank_.*|.*zero_pp_rank_\d+_.*|zero_to_.*\.py|latest")

R = TypeVar("R")


class RemoteCheckpoints:
    """A remote folder. Checkpoints are written to a local folder, and a thread uploads them.

    The link, a small text file, is written after its checkpoint is uploaded, and older checkpoints are deleted
    after that; so the link always names a complete checkpoint. A checkpoint that cannot be uploaded stays in the local
    folder, and the error contains its path. Of a sharded checkpoint each rank uploads the files that it wrote; rank 0
    uploads the manifest when all other files have arrived.

    Args:
        uri: URI of the folder.
        on_failure: Whether a failed upload ends training ("raise") or is a warning ("warn").
        num_attempts: Maximum number of attempts per transfer.
        initial_backoff: Pause after the first failure in seconds; doubles with each attempt.
        close_timeout: Maximum time to wait for transfers, in seconds.

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
        # A single worker runs the jobs in order.
        self._queue = UploadQueue(1, num_attempts, initial_backoff=initial_backoff, close_timeout=close_timeout)
        self._local: Path | None = None
        self._sent: list[Job] = []
        self._number = 0
        self._group: torch_dist.ProcessGroup | None = None

    def set_timeout(self, seconds: float) -> None:
        """Set the maximum time to wait for transfers.

        Args:
            seconds: The time in seconds.
        """
        self._queue.close_timeout = seconds

    @property
    def local(self) -> Path:
        """The local folder that checkpoints are written to."""
        if self._local is None:
            self._local = Path(tempfile.mkdtemp(prefix="composer-checkpoints-"))
        return self._local

    def probe(self) -> None:
        """Write and delete a small file, so that a missing permission is an error before training.

        Raises:
            OSError: The folder is not writable.
        """
        self.folder.probe()

    def path_of(self, name: str) -> str:
        """Return the URI of a checkpoint.

        Args:
            name: Its name in the folder.
        """
        return self.folder.uri_of(name)

    def name_of(self, path: str) -> str | None:
        """Return the name of a URI relative to this folder, or None if it is not in the folder.

        Args:
            path: Any path or URI.
        """
        name = path.removeprefix(f"{self.folder.uri}/")
        return name if name != path and is_plain(name) else None

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the names that have a complete checkpoint in this folder.

        Args:
            names: The names.

        Raises:
            OSError: The store cannot be reached.
        """
        names = list(names)
        there = {one.name.removesuffix(f"/{MANIFEST}") for one in self.folder.entries(deep=True)} if names else set()
        return [name for name in names if is_plain(name) and name in there]

    def create_group(self) -> None:
        """Create the process group for sharded uploads; all ranks must call this, and :meth:`publish` after it."""
        if self._group is None and dist.is_initialized():
            # The upload thread needs a separate group, since training uses the default one meanwhile.
            self._group = cast("torch_dist.ProcessGroup", torch_dist.new_group(backend="gloo"))

    def publish(
        self, name: str, latest: str | None = None, to_delete: Iterable[str] = (), template: str | None = None
    ) -> None:
        """Upload a checkpoint, set the link to it, and delete ``to_delete``; returns immediately.

        Waits if two checkpoints are still being uploaded, so that the local disk does not fill up.

        Args:
            name: Name of the file or folder in :attr:`local`, which is deleted when it is uploaded.
            latest: Name of the link, or None.
            to_delete: Names of the checkpoints to delete.
            template: The template that these must match; None if there are none.
        """
        self._sent = [job for job in self._sent if not job.done]
        self._handle_failure(lambda: self._queue.wait(jobs=self._sent[:-1]))
        # In a separate folder, since the next may have the same name.
        self._number += 1
        path = self.local / f"{self._number}" / name
        path.parent.mkdir(parents=True)
        (self.local / name).replace(path)
        job = self._send_folder(path, name) if path.is_dir() else self._send(path, name)
        self._sent.append(job)
        if dist.get_global_rank() != 0:
            return
        if latest is not None:
            job = self._link(f"{latest}{LINK_SUFFIX}", name, [job])
        self._discard(to_delete, template or "", [job])

    def send_text(self, name: str, text: str) -> None:
        """Upload a small file that is no checkpoint; returns immediately, and a failure is only logged.

        Args:
            name: Name in the folder.
            text: Its content.
        """

        def send() -> None:
            try:
                call_with_retries(lambda: self.folder.write_text(name, text), is_transient)
            except Exception as error:
                _log.warning("%s could not be uploaded: %s", self._masked_uri(name), mask_text(str(error)))

        self._queue.submit(f"upload of {self._masked_uri(name)}", send)

    def finish(self, template: str, latest: str | None, damaged: Collection[str], to_delete: Iterable[str]) -> None:
        """Finish the work of a killed process: link the newest checkpoint, delete ``to_delete``.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link; None leaves it unchanged.
            damaged: Names of corrupted checkpoints, to which the link is not set.
            to_delete: Names of the checkpoints to delete.

        Raises:
            OSError: The store cannot be reached.
        """
        found, linked = self._complete(template), self._linked(latest)
        there, after = {one.name for one in found}, list[Job]()
        newest = next((one.name for one in newest_first(found, template, linked) if one.name in there), None)
        is_due = newest is not None and newest not in damaged and (linked is None or linked.name != newest)
        if latest is not None and newest is not None and is_due:
            after.append(self._link(f"{latest}{LINK_SUFFIX}", newest, []))
        self._discard([name for name in to_delete if name != newest], template, after)

    def candidates(self, template: str, latest: str | None) -> list[Found]:
        """Return the URIs of the checkpoints to resume from, newest first; see :func:`.newest_first`.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.

        Raises:
            OSError: The store cannot be reached.
        """
        ordered = newest_first(self._complete(template), template, self._linked(latest))
        return [Found(self.path_of(one.name), one.modified) for one in ordered]

    def raise_if_later(self, template: str, timestamp: Timestamp, except_for: Collection[str]) -> None:
        """Raise if the folder has checkpoints of a later training time, which must belong to another run.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            timestamp: The current training time.
            except_for: Names that are allowed.

        Raises:
            FileExistsError: There is a later checkpoint.
        """
        names = [one.name for one in self._complete(template)]
        raise_if_later(names, self.folder.uri, template, timestamp, except_for=except_for)

    def remove_partial_files(self, template: str, latest: str | None) -> None:
        """Delete partial uploads of a killed process, if the store lists them.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Template of the link's name, or None.
        """
        links = () if latest is None else (f"{latest}{LINK_SUFFIX}",)
        for entry in self.folder.entries(deep=True):
            above, slash, last = entry.name.rpartition("/")
            found = PARTIAL.fullmatch(last)
            last = last if found is None else found[1]
            # A sharded checkpoint has partial files in its folder.
            names = (f"{above}{slash}{last}", above)
            is_ours = any(pattern(one).fullmatch(name) for one in (template, *links, FILENAME) for name in names)
            if (found is not None and is_ours) or (not above and _PROBE.fullmatch(last)):
                self.folder.remove(entry.name)

    def poll(self) -> None:
        """Report a failed upload, if there is one.

        Raises:
            OSError: A checkpoint could not be uploaded.
        """
        self._handle_failure(self._queue.poll)

    def wait(self) -> None:
        """Wait until all uploads are finished.

        Raises:
            OSError: A checkpoint could not be uploaded.
            TimeoutError: It takes longer than the timeout.
        """
        self._handle_failure(self._queue.wait)

    def close(self) -> None:
        """Wait until all uploads are finished, and delete the local folder unless one has failed.

        Raises:
            OSError: A checkpoint could not be uploaded.
            TimeoutError: It takes longer than the timeout.
        """
        try:
            self._handle_failure(self._queue.close)
        finally:
            group, self._group = self._group, None
            if group is not None and dist.is_initialized():
                torch_dist.destroy_process_group(group)
            local, self._local = self._local, None
            if local is not None and any(path.is_file() for path in local.rglob("*")):
                _log.warning(
                    "Checkpoints that could not be uploaded to %s are in %s.", mask_text(self.folder.uri), local
                )
            elif local is not None:
                shutil.rmtree(local, ignore_errors=True)

    def _masked_uri(self, name: str) -> str:
        """Return the URI of a file for messages, without secrets."""
        return mask_text(self.folder.uri_of(name))

    def _link(self, link: str, name: str, after: Iterable[Job]) -> Job:
        target = "../" * link.count("/") + name
        what = f"upload of {self._masked_uri(link)}"
        return self._queue.submit(what, lambda: self.folder.write_text(link, target), after)

    def _discard(self, names: Iterable[str], template: str, after: list[Job]) -> None:
        for one in names:
            if is_plain(one) and pattern(template).fullmatch(one):
                self._queue.submit(f"removal of {self._masked_uri(one)}", lambda one=one: self._remove(one), after)
            else:
                folder = mask_text(self.folder.uri)
                _log.warning("%s is not removed from %s: it is not a checkpoint of this run.", one, folder)

    def _remove(self, name: str) -> None:
        """Delete a checkpoint; a partly deleted one never looks complete."""
        if self.folder.exists(name):
            self.folder.remove(name)
            return
        shards = Folder(self.path_of(name))
        names = shards.names()
        if MANIFEST in names or all(map(_SHARD.fullmatch, names)):
            shards.remove(MANIFEST)  # first, since it marks the checkpoint as complete
            shards.remove_all()

    def _send(self, path: Path, name: str) -> Job:
        """Upload a file, and delete the local one afterwards."""

        def send() -> None:
            try:
                self.folder.upload(path, name)
            except Exception as error:
                error.add_note(f"The checkpoint is in {str(path)!r}.")
                raise
            path.unlink()

        return self._queue.submit(f"upload of {self._masked_uri(name)}", send)

    def _send_folder(self, path: Path, name: str) -> Job:
        """Upload the files of this rank; on rank 0, the job ends when all ranks have uploaded theirs."""
        mine = [one.name for one in sorted(path.iterdir()) if one.name != MANIFEST]
        jobs = [self._send(path / one, f"{name}/{one}") for one in mine]

        def agree() -> None:
            failed = [str(job.error) for job in jobs if job.error is not None]
            failures = dist.all_gather_object(failed, self._group)
            # A rank that has failed reports its error itself.
            others = [text for rank, texts in enumerate(failures) for text in texts if rank != dist.get_global_rank()]
            if others or failed:
                raise RuntimeError(f"Not all files of {self._masked_uri(name)!r} were uploaded: {'; '.join(others)}")

        uploaded = self._queue.submit(f"upload of the other files of {self._masked_uri(name)}", agree, after_any=jobs)
        if not (path / MANIFEST).is_file():
            return uploaded
        return self._queue.submit(
            f"upload of {self._masked_uri(name)}/{MANIFEST}",
            lambda: (self.folder.upload(path / MANIFEST, f"{name}/{MANIFEST}"), (path / MANIFEST).unlink()),
            [uploaded],
        )

    def _complete(self, template: str) -> list[Found]:
        """Return the files and the complete sharded folders whose names match a template."""
        entries = self.folder.entries(deep=True)
        found = [Found(entry.name.removesuffix(f"/{MANIFEST}"), entry.modified) for entry in entries]
        return [one for one in found if pattern(template).fullmatch(one.name)]

    def _linked(self, latest: str | None) -> Found | None:
        """Return the name of the link's target in this folder, and when the link was written."""
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

    def _handle_failure(self, action: Callable[[], R]) -> R | None:
        try:
            return action()
        except Exception as error:
            error.add_note("A checkpoint could not be uploaded; earlier checkpoints are unchanged.")
            if self._on_failure == "raise":
                raise
            notes = " ".join([str(error), *getattr(error, "__notes__", ())])
            warnings.warn(notes, ComposerWarning, stacklevel=3)
            return None


def _exists(uri: str) -> bool:
    folder, name = split(uri)
    return Folder(folder).exists(name) or Folder(uri).exists(MANIFEST)
