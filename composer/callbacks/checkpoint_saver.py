"""Saving checkpoints at intervals."""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from composer import dist
from composer._text import did_you_mean, one_of
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.folders import (
    ensure_folder_has_no_conflicting_files,
    remove_checkpoint,
    remove_partial_files,
)
from composer.checkpoint.latest import create_symlink_file, link, newest_in, settle
from composer.checkpoint.remote import RemoteCheckpoints
from composer.checkpoint.retention import SavedCheckpoint, retention_of
from composer.checkpoint.safetensors_files import check_format
from composer.checkpoint.save import collect, folders_for, template_for
from composer.checkpoint.writer import CheckpointWriter
from composer.core._names import check_inside, check_remote_name, check_template, format_name, with_run_name
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time, TimeUnit
from composer.storage.transfer import LINK_SUFFIX
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CheckpointSaver"]


class CheckpointSaver(Callback):
    """Saves checkpoints at an interval, with a link to the newest, and removes those that need not be kept.

    The folder may be anywhere that fsspec knows. To a URI, checkpoints go in a thread, from a temporary folder of this
    machine; the link is a text file ``<name>.symlink`` there.

    A checkpoint is written under a temporary name and renamed when it is complete; the link moves after that, and what
    is superfluous goes last. So at any moment the link points at a whole checkpoint.

    Where ``state.checkpoint_folders`` says so, as it does with ``parallelism_config={"fsdp": {"state_dict_type":
    "sharded"}}``, each process writes its part, and a checkpoint is a folder of the name that stands there.

    Args:
        folder: Where to, a path or URI, with names in braces such as ``{run_name}``.
        filename: Of a checkpoint, with ``{epoch}``, ``{batch}`` and the like. One that ends in ".safetensors" is in
            that format, with ``weights_only=True``.
        remote_file_name: Name under which loggers that keep files get it; None is not at all.
        latest_filename: Of the link; None makes none.
        latest_remote_file_name: Of the link for loggers that keep files, as a text file ``<name>.symlink``.
        save_interval: How often: epochs, a time string, a :class:`.Time` or ``(state, event) -> bool``.
        overwrite: Whether a folder may hold later checkpoints, of another run, which this one may replace.
        num_checkpoints_to_keep: How many of the newest are kept; -1 is all. The very newest always is.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, patterns of paths or a function.
        upload_timeout_in_seconds: How long the end of a training waits for what is on its way to a remote folder.
        keep_best: How many of the best are kept beside the newest, with ``num_checkpoints_to_keep``.
        monitor: The metric that tells which are best, ``"<label>/<name>"`` such as ``"eval/MulticlassAccuracy"``.
        mode: Whether a small or a large value is good, "min" or "max".
        keep_every: Keep every so-manieth checkpoint for ever, with ``num_checkpoints_to_keep``; 0 is none.
        save_metrics: Whether to keep the state of the metrics.
        asynchronous: Whether a thread writes while training goes on. It then waits only for a copy in host memory,
            which is as large as the checkpoint.
        on_failure: Whether a checkpoint that cannot be written ends the training ("raise") or is a warning ("warn").

    Attributes:
        saved_checkpoints: Paths of what is kept, oldest first.

    Raises:
        ValueError: A name has an unknown placeholder or leads out of the folder, or arguments do not go together.

    >>> CheckpointSaver(
    ...     "{run_name}/checkpoints", save_interval="500ba", num_checkpoints_to_keep=2
    ... ).overwrite
    False
    """

    def __init__(
        self,
        folder: str | Path = "{run_name}/checkpoints",
        filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}.pt",
        remote_file_name: str | Path | None = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt",
        latest_filename: str | Path | None = "latest-rank{rank}.pt",
        latest_remote_file_name: str | Path | None = "{run_name}/checkpoints/latest-rank{rank}.pt",
        save_interval: Time | str | int | Callable[[State, Event], bool] = "1ep",
        *,
        overwrite: bool = False,
        num_checkpoints_to_keep: int = -1,
        weights_only: bool = False,
        ignore_keys: IgnoreKeys = None,
        upload_timeout_in_seconds: float = 3600.0,
        keep_best: int = 0,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        keep_every: int = 0,
        save_metrics: bool = False,
        asynchronous: bool = False,
        on_failure: Literal["raise", "warn"] = "raise",
    ) -> None:
        self.folder = check_template("folder", os.fspath(folder))
        self.filename = _refuse_compressed(_inside("filename", os.fspath(filename)))
        self.remote_file_name = _remote("remote_file_name", remote_file_name)
        self.latest_filename = latest_filename and _inside("latest_filename", os.fspath(latest_filename))
        self.latest_remote_file_name = _remote("latest_remote_file_name", latest_remote_file_name)
        self.save_interval = save_interval if callable(save_interval) else create_interval_scheduler(save_interval)
        self.overwrite, self.weights_only, self.ignore_keys = overwrite, weights_only, ignore_keys
        self.save_metrics, self._upload_timeout = save_metrics, upload_timeout_in_seconds
        self.num_checkpoints_to_keep, self.asynchronous = num_checkpoints_to_keep, asynchronous
        self.monitor = monitor
        check_format("filename", self.filename, weights_only=weights_only)
        self._retention = retention_of(num_checkpoints_to_keep, keep_best, keep_every, mode, monitor)
        self._on_failure: Literal["raise", "warn"] = one_of("on_failure", on_failure, _FAILURES)
        self._writer = CheckpointWriter(behind=asynchronous, on_failure=self._on_failure)
        self._remote: RemoteCheckpoints | None = None
        self._saved: list[SavedCheckpoint] = []
        self._obsolete: list[str] = []
        self._number = 0
        self._last_batch: int | None = None

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of what is kept, oldest first."""
        return [one.path for one in self._saved]

    @property
    def location(self) -> str | None:
        """Path of the newest checkpoint that was saved, if there is one."""
        return self._saved[-1].path if self._saved else None

    def init(self, state: State, logger: Logger) -> None:
        """Begin a list of this run, and make the folder, which tells now whether it can be written to."""
        self._saved, self._obsolete, self._number, self._last_batch, self._remote = [], [], 0, None, None
        folders = folders_for(state, self.filename, weights_only=self.weights_only)
        if folders is not None and folders.engine is not None and self.asynchronous:
            raise ValueError("save_async=True, but DeepSpeed's engine writes a checkpoint itself, before it goes on.")
        if dist.get_global_rank() == 0:
            remote = self._elsewhere(state)
            if remote is not None:
                remote.probe()
            else:
                self.resolved_folder(state).mkdir(parents=True, exist_ok=True)

    def resolved_folder(self, state: State) -> Path:
        """Return the folder of this machine that checkpoints are written to, its placeholders replaced.

        Args:
            state: The state of the run.
        """
        remote = self._elsewhere(state)
        return local_path(format_name(self.folder, state.run_name)) if remote is None else remote.local

    def place(self, state: State, name: str) -> str:
        """Return the path or URI of a file in the folder.

        Args:
            state: The state of the run.
            name: Its name there.
        """
        remote = self._elsewhere(state)
        return str(self.resolved_folder(state) / name) if remote is None else remote.folder.uri_of(name)

    def newest(self, state: State) -> str | None:
        """Return the path or URI of the newest checkpoint that a run of this name has saved; None if there is none.

        All processes must call this.

        That is what the link points at, unless a crash has come between a checkpoint and its link.

        Args:
            state: The state of the run.
        """
        remote, name = self._elsewhere(state), self._template(state)
        if remote is not None:
            return remote.newest(name, self._latest_name(state))
        found = newest_in(self.resolved_folder(state), name, self.latest(state))
        return None if found is None else str(found)

    def latest(self, state: State) -> Path | None:
        """Return the path of the link to the newest checkpoint; None where there is to be none.

        Args:
            state: The state of the run.
        """
        name = self._latest_name(state)
        return None if name is None else self.resolved_folder(state) / name

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuse a folder in which another run has come further, whose checkpoints would be mixed with ours."""
        if dist.get_global_rank() != 0:
            return
        folder, name = self.resolved_folder(state), self._template(state)
        ours = {Path(path).name for path in self.saved_checkpoints}
        remote = self._elsewhere(state)
        # The process that saved what is resumed may have ended before it moved the link, and removed these.
        left = [path for path in self._obsolete if path not in self.saved_checkpoints]
        if remote is not None:
            latest = self._latest_name(state)
            remote.remove_partial_files(name, latest)
            if not self.overwrite:
                remote.refuse_later(name, state.timestamp, ours)
            remote.settle(name, latest if ours else None, left)
            return
        for begun in (name, self.latest_filename):
            if begun is not None:
                remove_partial_files(folder, with_run_name(begun, state.run_name))
        if not self.overwrite:
            ensure_folder_has_no_conflicting_files(folder, name, state.timestamp, except_for=ours)
        newest = settle(folder, name, self.latest(state) if ours else None)
        for path in left:
            if newest is None or Path(path) != newest:
                remove_checkpoint(path)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Tell of a checkpoint that failed behind the training."""
        self._writer.poll()
        if self._remote is not None:
            self._remote.poll()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval says so."""
        self._save_if_due(Event.BATCH_CHECKPOINT, state, logger)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval says so."""
        self._save_if_due(Event.EPOCH_CHECKPOINT, state, logger)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval says so."""
        self._save_if_due(Event.ITERATION_CHECKPOINT, state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait until everything is written, and has arrived."""
        self._writer.wait()
        if self._remote is not None:
            self._remote.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait until everything is written, and has arrived."""
        try:
            self._writer.close()
        finally:
            remote, self._remote = self._remote, None
            if remote is not None:
                remote.close()

    def save(self, state: State, logger: Logger) -> None:
        """Save now, unless this batch is saved already; all processes must call this.

        Args:
            state: The state of the run.
            logger: Its destinations that keep files get the checkpoint too.

        Raises:
            OSError: It could not be written.
        """
        self._writer.wait()  # what that changes comes first
        batch = int(state.timestamp.count(TimeUnit.BATCH))
        # Only who writes knows of a failure, after which the same batch may be saved again.
        is_saved = [self._last_batch == batch]
        dist.broadcast_object_list(is_saved)
        if is_saved[0]:
            return
        name = format_name(self._template(state), state.run_name, state.timestamp, rank=0)
        place = self.place(state, name)
        score = self._score(state)
        self._last_batch = batch
        before = self._saved, self._obsolete
        # Before the state is taken, so that a resumed run knows of this checkpoint too.
        self._saved = [one for one in self._saved if one.path != place]
        self._saved.append(SavedCheckpoint(place, batch, self._number, score))
        self._number += 1
        superfluous = self._retention.superfluous(self._saved)
        self._saved = [one for one in self._saved if one not in superfluous]
        self._obsolete = [one.path for one in superfluous if one.path != place]
        content = collect(
            state, weights_only=self.weights_only, ignore_keys=self.ignore_keys, metrics=self.save_metrics
        )
        path, latest, remote = self.resolved_folder(state) / name, self.latest(state), self._elsewhere(state)
        obsolete, link_name = self._obsolete, self._latest_name(state)
        copies = self._names_for_loggers(state) if logger.has_file_upload_destination() else (None, None)
        folders = folders_for(state, self.filename, weights_only=self.weights_only)
        is_first = dist.get_global_rank() == 0
        if remote is not None and folders is not None:
            remote.meet()

        def then() -> None:
            if is_first and latest is not None and remote is None:
                link(latest, path)
            if is_first or remote is not None:  # to a folder elsewhere, each process has its own part
                _hand_on(logger, path, copies[0], copies[1] if is_first else None)
            if remote is not None:
                remote.publish(name, link_name, obsolete)
            elif is_first:
                for one in obsolete:
                    remove_checkpoint(one)

        def otherwise() -> None:
            # What was to make room for this one is still there.
            (self._saved, self._obsolete), self._last_batch = before, None

        self._writer.write(content, path, then, otherwise, folders=folders, apart=remote is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept, and what is being removed."""
        saved = [one.state_dict() for one in self._saved]
        return {"saved": saved, "obsolete": list(self._obsolete), "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what an earlier process has saved, so that it is removed in its turn.

        Args:
            state: What :meth:`state_dict` returned.
        """
        # The predecessor's list, of paths without what is needed here, has another key.
        self._saved = [SavedCheckpoint(**one) for one in state.get("saved", [])]
        self._obsolete = list(state.get("obsolete", []))
        self._number = state.get("number", 0)

    def _save_if_due(self, event: Event, state: State, logger: Logger) -> None:
        if self.save_interval(state, event):
            self.save(state, logger)

    def _score(self, state: State) -> float | None:
        """The value of the monitored metric, if there has been an evaluation."""
        if self.monitor is None:
            return None
        known = [f"{label}/{name}" for label, metrics in state.eval_metrics.items() for name in metrics]
        if self.monitor not in known:
            near = did_you_mean(self.monitor, known)
            raise ValueError(f"monitor={self.monitor!r} is not among the metrics {known}.{near}")
        value = state.eval_metric_values.get(self.monitor)
        return None if value is None else float(value)

    def _elsewhere(self, state: State) -> RemoteCheckpoints | None:
        """The folder, if it is on another machine."""
        folder = format_name(self.folder, state.run_name)
        if self._remote is None and is_remote(folder):
            self._remote = RemoteCheckpoints(folder, self._on_failure, close_timeout=self._upload_timeout)
        return self._remote

    def _template(self, state: State) -> str:
        """The name of the checkpoints of this run, but for the counters."""
        return with_run_name(self._named(state, self.filename), state.run_name)

    def _named(self, state: State, filename: str) -> str:
        return template_for(state, filename, weights_only=self.weights_only)

    def _latest_name(self, state: State) -> str | None:
        return _name_now(self.latest_filename, state)

    def _names_for_loggers(self, state: State) -> tuple[str | None, str | None]:
        """The names of a checkpoint and of the link for the destinations that keep files."""
        latest = None if self.latest_filename is None else self.latest_remote_file_name
        name = None if self.remote_file_name is None else self._named(state, self.remote_file_name)
        return _name_now(name, state), _name_now(latest, state)


_FAILURES: tuple[Literal["raise", "warn"], ...] = ("raise", "warn")


def _name_now(template: str | None, state: State) -> str | None:
    return None if template is None else format_name(template, state.run_name, state.timestamp, rank=0)


def _hand_on(logger: Logger, path: Path, name: str | None, latest: str | None) -> None:
    """Give a checkpoint, and after it a text file that names it, to the destinations that keep files."""
    if name is None:
        return
    logger.upload_file(name, path, overwrite=True)
    if latest is not None:
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            text = Path(folder, f"{Path(latest).name}{LINK_SUFFIX}")
            create_symlink_file(posixpath.relpath(name, posixpath.dirname(latest) or "."), text)
            logger.upload_file(f"{latest}{LINK_SUFFIX}", text, overwrite=True)


def _refuse_compressed(filename: str) -> str:
    if filename.endswith((".gz", ".bz2", ".xz", ".lzma", ".lzo", ".lz4", ".zst", ".tar", ".tgz")):
        raise ValueError(
            f"filename={filename!r}: checkpoints are not compressed, as weights hardly get smaller. Use '.pt'."
        )
    return filename


def _inside(argument: str, name: str) -> str:
    return check_inside(argument, check_template(argument, name, timed=True))


def _remote(argument: str, name: str | Path | None) -> str | None:
    return None if name is None else check_remote_name(argument, check_template(argument, os.fspath(name), timed=True))
