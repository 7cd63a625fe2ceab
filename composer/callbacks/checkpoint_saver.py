"""Saving checkpoints at intervals."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from composer import dist
from composer._secrets.masking import mask_text
from composer._text import one_of
from composer.callbacks._checkpoint_names import in_folder, name_now, names_for_loggers, remote, times_from, times_of
from composer.callbacks._duplicate_saves import Moment, is_never
from composer.callbacks._monitored_metric import mode_for, read_score
from composer.callbacks._saver_settings import SaverSettings
from composer.checkpoint.async_writer import CheckpointWriter
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.local_folder import LocalCheckpoints
from composer.checkpoint.logger_uploads import upload_copy
from composer.checkpoint.name_templates import bind
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.checkpoint.ordering import Found
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.checkpoint.retention import BestCheckpoint, retention_of
from composer.checkpoint.safetensors_files import check_format
from composer.checkpoint.save import collect, folders_for, template_for
from composer.checkpoint.saved_checkpoints import SavedList, folder_key
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.metric_names import check_monitor
from composer.core.name_placeholders import check_template, format_name
from composer.core.time import Time
from composer.core.timestamp import Timestamp
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CheckpointSaver"]

_FAILURES: tuple[Literal["raise", "warn"], ...] = ("raise", "warn")


class CheckpointSaver(SaverSettings, Callback):
    """Saves checkpoints at an interval, with a link to the newest, and removes those that need not be kept.

    The folder may be anywhere that fsspec knows. To a URI, checkpoints go in a thread, from a temporary folder of this
    machine; the link is a text file ``<name>.symlink`` there. Settings hold when they are changed later, but for the
    folder, ``filename`` and the like, which raise an ``AttributeError``.

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
        num_checkpoints_to_keep: How many of the newest are kept; -1 is all, or with ``keep_best`` or ``keep_every``
            one. The very newest always is.
        weights_only: Whether to leave out what only training needs.
        ignore_keys: What else to leave out, patterns of paths or a function.
        upload_timeout_in_seconds: How long the end of a training waits for what is on its way to a remote folder.
        keep_best: How many of the best are kept beside the newest, by ``monitor``.
        monitor: The metric that tells which are best, such as ``"eval/MulticlassAccuracy"``.
        mode: Whether small or large values are good, "min" or "max"; by default as :func:`.larger_is_better` says.
        keep_every: Keep every so-manieth checkpoint for ever; 0 is none.
        save_metrics: Whether to keep the state of the metrics.
        asynchronous: Whether a thread writes while training goes on. It then waits only for a copy in host memory,
            which is as large as the checkpoint.
        on_failure: Whether a checkpoint that cannot be written ends the training ("raise") or is a warning ("warn").

    Attributes:
        saved_checkpoints: Paths of what is kept, oldest first.
        all_saved_checkpoints_to_timestamp: The time of all that was saved, by path.
        best_checkpoint: Path and value of the best of them, by ``monitor``.

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
        mode: Literal["min", "max"] | None = None,
        keep_every: int = 0,
        save_metrics: bool = False,
        asynchronous: bool = False,
        on_failure: Literal["raise", "warn"] = "raise",
    ) -> None:
        self.folder = check_template("folder", os.fspath(folder))
        self.filename = in_folder("filename", filename, self.folder)
        self.remote_file_name = remote("remote_file_name", remote_file_name)
        self.latest_filename = in_folder("latest_filename", latest_filename, self.folder) if latest_filename else None
        self.latest_remote_file_name = remote("latest_remote_file_name", latest_remote_file_name)
        self.save_interval = save_interval if callable(save_interval) else create_interval_scheduler(save_interval)
        self.overwrite, self.weights_only, self.ignore_keys = overwrite, weights_only, ignore_keys
        self.save_metrics, self._upload_timeout = save_metrics, upload_timeout_in_seconds
        self.num_checkpoints_to_keep, self.asynchronous = num_checkpoints_to_keep, asynchronous
        self.monitor, self.mode = monitor if monitor is None else check_monitor(monitor), mode
        check_format("filename", self.filename.filename, weights_only=weights_only)
        self._finds_mode = mode is None and monitor is not None
        retention = retention_of(num_checkpoints_to_keep, keep_best, keep_every, mode or "min", monitor)
        self._list = SavedList(retention, folder_key(self.folder, self.filename.filename))
        self._on_failure: Literal["raise", "warn"] = one_of("on_failure", on_failure, _FAILURES)
        self._writer = CheckpointWriter(background=asynchronous, on_failure=self._on_failure)
        self._store: LocalCheckpoints | RemoteCheckpoints | None = None
        self._last_saved: Moment | None = None
        self.all_saved_checkpoints_to_timestamp: dict[str, Timestamp] = {}

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of what is kept, oldest first."""
        return self._list.paths

    @property
    def best_checkpoint(self) -> BestCheckpoint | None:
        """Path and value of the best checkpoint that is kept, by ``monitor``; None if there was no evaluation yet."""
        return self._list.best

    @property
    def __location__(self) -> str | None:
        """Path of the newest checkpoint that was saved, if there is one."""
        return self._list.paths[-1] if self._list.entries else None

    @property
    def __remote_file_name__(self) -> str | None:
        return None if self.remote_file_name is None else self.remote_file_name.filename

    def init(self, state: State, logger: Logger) -> None:
        """Begin a list of this run, and make the folder, which tells now whether it can be written to."""
        self._last_saved, self._store = None, None
        folders = folders_for(state, self.filename.filename, weights_only=self.weights_only)
        if folders is not None and folders.engine is not None and self.asynchronous:
            raise ValueError("save_async=True, but DeepSpeed's engine writes a checkpoint itself, before it goes on.")
        store = self.store(state)
        # A folder may have checkpoints of both forms, one file and several.
        templates = (self.template(state), bind(self.filename.filename, state.run_name))
        self._list.begin(store, templates, state.run_name if state.run_name_given else None)
        if dist.get_global_rank() == 0:
            store.probe()

    def store(self, state: State) -> LocalCheckpoints | RemoteCheckpoints:
        """Return the folder of the run, of this machine or of another.

        Args:
            state: The state of the run.
        """
        if self._store is None:
            folder = format_name(self.folder, state.run_name)
            if is_remote(folder):
                self._store = RemoteCheckpoints(folder, self._on_failure, close_timeout=self._upload_timeout)
            else:
                self._store = LocalCheckpoints(local_path(folder))
        return self._store

    def template(self, state: State) -> str:
        """Return the name of the checkpoints of a run, relative to the folder, with its counters in braces.

        Args:
            state: The state of the run.
        """
        return bind(template_for(state, self.filename.filename, weights_only=self.weights_only), state.run_name)

    def place(self, state: State, name: str) -> str:
        """Return the path or URI of a file in the folder.

        Args:
            state: The state of the run.
            name: Its name there.
        """
        return self.store(state).path_of(name)

    def candidates(self, state: State) -> list[Found]:
        """Return the paths or URIs of the checkpoints to resume from, and when they were written, the newest first.

        The newest is what the link points at, unless a crash has come between a checkpoint and its link. Older ones are
        for when it cannot be read. All processes must call this: each looks in a folder, and the first at a URI.

        Args:
            state: The state of the run.

        Raises:
            OSError: The folder cannot be read.
        """
        store, template, latest = self.store(state), self.template(state), self.latest_name(state)
        if isinstance(store, LocalCheckpoints):
            return store.candidates(template, latest)
        what = f"look for checkpoints in {mask_text(store.folder.uri)!r}"
        return run_on_rank_zero(lambda: store.candidates(template, latest), what)

    def newest(self, state: State) -> str | None:
        """Return the first path of :meth:`candidates`, None if there is none; all processes must call this.

        Args:
            state: The state of the run.
        """
        return next((one.name for one in self.candidates(state)), None)

    def pass_over(self, paths: Sequence[str]) -> None:
        """Note checkpoints that could not be read: they may stay in the folder though they are later than this run.

        Args:
            paths: Their paths or URIs.
        """
        self._list.pass_over(paths)

    def latest_name(self, state: State) -> str | None:
        """Return the name of the link to the newest checkpoint, relative to the folder; None where there is to be none.

        Args:
            state: The state of the run.
        """
        return name_now(self.latest_filename, state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuse a folder in which another run has come further, whose checkpoints would be mixed with ours."""
        self._score(state)  # which refuses a metric that does not exist, or of which nobody knows what is better
        # What the folder has is the same for all; what it has not was saved to another folder.
        self._list.put_back(run_on_rank_zero(lambda: self._begin(state), f"prepare {mask_text(self.folder)!r}"))

    def _begin(self, state: State) -> Any:
        """Check the folder, finish what a killed process had begun, and return the list of what is there."""
        store, template, latest = self.store(state), self.template(state), self.latest_name(state)
        entries, obsolete, damaged = self._list.snapshot(present_only=True)
        loaded = None if state.load_path is None else store.name_of(state.load_path)
        savers = [callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)]
        if state.load_path is not None and not any(one.store(state).name_of(state.load_path) for one in savers):
            entries, obsolete = [], []  # a checkpoint from elsewhere, whatever it lists, saved nothing here
        ours = {*(one.name for one in entries), *damaged}
        if not self.overwrite:
            store.refuse_later(template, state.timestamp, ours)
        store.remove_partial_files(
            template, None if self.latest_filename is None else bind(self.latest_filename.filename, state.run_name)
        )
        # The process that saved what is resumed may have ended before it moved the link, and removed these.
        left = [name for name in obsolete if name not in ours and name != loaded]
        store.finish(template, latest if entries else None, damaged, left)
        return entries, obsolete, damaged

    def batch_start(self, state: State, logger: Logger) -> None:
        """Tell of a checkpoint that failed behind the training."""
        self._writer.poll()
        if isinstance(self._store, RemoteCheckpoints):
            self._store.poll()

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
        """Save what has become known of the end since the last checkpoint; wait until everything has arrived."""
        if not self.weights_only and not is_never(self.save_interval):
            self.save(state, logger, at_end=True)
        self._writer.wait()
        if isinstance(self._store, RemoteCheckpoints):
            self._store.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait until everything is written, and has arrived."""
        try:
            self._writer.close()
        finally:
            if isinstance(self._store, RemoteCheckpoints):
                self._store.close()

    def save(self, state: State, logger: Logger, *, at_end: bool = False) -> None:
        """Save now, unless this batch and how the run ended are saved already; all processes must call this.

        Args:
            state: The state of the run.
            logger: Its destinations that keep files get the checkpoint too.
            at_end: Save only what the last checkpoint lacks: a later evaluation, that the run was ended early.

        Raises:
            OSError: It could not be written.
        """
        self._writer.wait()  # what that changes comes first
        now = Moment.of(state)
        # Only who writes knows of a failure, after which the same may be saved again.
        dist.broadcast_object_list(is_saved := [now.is_saved_by(self._last_saved, at_end=at_end)])
        if not is_saved[0]:
            self._save_checkpoint(state, logger)

    def _save_checkpoint(self, state: State, logger: Logger) -> None:
        """Save now; subclasses that were written for the predecessor override and call this."""
        self._writer.wait()
        now = Moment.of(state)
        store, template = self.store(state), self.template(state)
        name = format_name(template, state.run_name, state.timestamp, rank=0)
        # Before the state is taken, so that a resumed run knows of this checkpoint too.
        before = self._list.add(name, now.batch, self._score(state))
        self._last_saved = now
        times = dict(self.all_saved_checkpoints_to_timestamp)
        self.all_saved_checkpoints_to_timestamp[store.path_of(name)] = state.timestamp

        def otherwise() -> None:
            # What was to make room for this one is still there.
            self._list.put_back(before)
            self.all_saved_checkpoints_to_timestamp = times
            self._last_saved = None

        only, metrics = self.weights_only, self.save_metrics
        try:
            content = collect(state, weights_only=only, ignore_keys=self.ignore_keys, metrics=metrics)
        except TypeError:
            otherwise()
            raise
        path, latest, obsolete = store.local / name, self.latest_name(state), self._list.obsolete
        copies = names_for_loggers(self, state) if logger.has_file_upload_destination() else (None, None)
        folders = folders_for(state, self.filename.filename, weights_only=only)
        is_first, per_rank_folder = dist.get_global_rank() == 0, isinstance(store, RemoteCheckpoints)
        if isinstance(store, RemoteCheckpoints) and folders is not None:
            store.create_group()

        def then() -> None:
            if is_first and latest is not None and isinstance(store, LocalCheckpoints):
                store.set_link(latest, name)
            if is_first or per_rank_folder:  # to a folder elsewhere, each process has its own part
                upload_copy(logger, path, copies[0], copies[1] if is_first else None)
            if isinstance(store, RemoteCheckpoints):
                store.publish(name, latest, obsolete, template)
            elif is_first:
                store.remove(obsolete, template)

        self._writer.write(content, path, then, otherwise, folders=folders, per_rank_folder=per_rank_folder)

    def state_dict(self) -> dict[str, Any]:
        """Return what was saved when, what is kept, and what is being removed, by names relative to the folder."""
        saved = times_of(self.all_saved_checkpoints_to_timestamp, self._list)
        return {**self._list.state_dict(), "all_saved_checkpoints_to_timestamp": saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what an earlier process of this run has saved to this folder, so that it is removed in its turn.

        The list of another run, or of checkpoints elsewhere, is left alone.

        Args:
            state: What :meth:`state_dict` returned.
        """
        if self._list.load_state_dict(state):
            saved = state.get("all_saved_checkpoints_to_timestamp", ())
            self.all_saved_checkpoints_to_timestamp.update(times_from(saved, self._list))

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Tell whether a state is that of a saver with this folder and these names.

        Args:
            state: What :meth:`state_dict` of one of them returned.
        """
        return state.get("place") == self._list.folder_key

    def _save_if_due(self, event: Event, state: State, logger: Logger) -> None:
        if self.save_interval(state, event):
            self.save(state, logger)

    def _score(self, state: State) -> float | None:
        """The value of the monitored metric, if there has been an evaluation."""
        if self.monitor is None:
            return None
        if self._finds_mode:
            self._list.retention = replace(self._list.retention, mode=mode_for(state, self.monitor))
        return read_score(state, self.monitor)
