"""Find the newest checkpoint of a run at or before a step, from which ``replay`` and ``fork`` start."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from composer._secrets.masking import mask_text
from composer.checkpoint.file_format import DamagedCheckpointError
from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.load import open_checkpoint
from composer.core.time import TimeUnit, ensure_time
from composer.core.timestamp import Timestamp
from composer.storage.downloads import get_file
from composer.storage.folder import Folder
from composer.storage.uris import is_remote, join, local_path

__all__ = ["CheckpointFacts", "History", "facts_of", "history_of", "run_folder"]

# As in "ep1-ba200-rank0.pt" or "batch_200.pt"; only a guess, the content decides.
_BATCH_IN_NAME = re.compile(r"(?:^|[^a-z])ba(?:tch)?[-_=]?([0-9]{1,18})(?![0-9])", re.IGNORECASE)
# What a resumed run needs to be bit for bit the run that saved the checkpoint.
_NEEDED = ("model", "optimizers", "timestamp", "rank_zero_seed", "dataset_state", "algorithms", "callbacks")
# The same in words.
_WORDS = {
    "model": "the weights",
    "timestamp": "the training time",
    "rank_zero_seed": "the seed",
    "dataset_state": "the position in the data",
    "dataset_state/train": "the position in the data",
    "rng": "the random state",
    "metadata": "the version of the library",
}
# Saved within a step, with a part of it: random numbers are drawn, buffers updated, perhaps weights moved.
_REST_OF_STEP = "in_step"
_SUFFIXES = ("", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint says about its run.

    Attributes:
        path: Its path or URI.
        batch: Number of batches trained.
        seed: The run's seed on rank 0; None if not saved.
        world_size: Number of ranks; None if not saved.
        missing: What it lacks to continue the run exactly, such as "optimizers"; "in_step" if it was saved within a
            step, so that it lacks the rest of it.
        program: How the run was started, see :func:`.program_of_process`; None if unknown.
        metadata: Versions, device and precision of the run.
        run_name: Name of the run.
        forked_from: The run that it was forked from, see :attr:`.State.forked_from`; None if it was not.
        fingerprint: What the run started from, see :attr:`.State.fingerprint`; None if unknown.
        data: How the position in the data was saved: "indices", "loader", "dataset", "replay", "any" or None.
        is_end: Whether the run had reached the end of its last call of ``fit``.
        fit_calls: Which calls of ``fit`` of the program trained the run so far, from 1; empty in older checkpoints.

    >>> CheckpointFacts("ep1.pt", 20).missing
    ()
    """

    path: str
    batch: int
    seed: int | None = None
    world_size: int | None = None
    missing: tuple[str, ...] = ()
    program: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    data: str | None = None
    run_name: str = ""
    forked_from: dict[str, Any] | None = None
    fingerprint: dict[str, Any] | None = None
    is_end: bool = False
    fit_calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class History:
    """The checkpoints of a run around a step.

    Attributes:
        before: The newest complete one at or before the step; None if there is none.
        after: A complete one after the step, if ``before`` is None and there is one.
        incomplete: Those that cannot continue the run exactly, with what they lack.
        unreadable: Those that cannot be read, with the error.

    >>> History().before is None
    True
    """

    before: CheckpointFacts | None = None
    after: CheckpointFacts | None = None
    incomplete: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    unreadable: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def problems(self) -> str:
        """Sentences on the checkpoints that are of no use, and how to have complete ones next time; may be empty."""
        parts: list[str] = []
        for path, names in list(self.incomplete.items())[:3]:
            told = [_WORDS.get(name, f"the state of the {name}") for name in names if name != _REST_OF_STEP]
            parts.append(_lacks(mask_text(path), list(dict.fromkeys(told))))
        for path, error in list(self.unreadable.items())[:3]:
            parts.append(f"{mask_text(path)!r} cannot be read: {mask_text(error).rstrip('.')}.")
        lacking = {name for names in self.incomplete.values() for name in names}
        if lacking - {_REST_OF_STEP}:
            parts.append("For the next run, save without save_weights_only and save_ignore_keys.")
        if _REST_OF_STEP in lacking:
            parts.append("For the next run, let callbacks save at BATCH_END or a later event.")
        return " ".join(parts)


def _lacks(path: str, told: list[str]) -> str:
    """Return a sentence on what a checkpoint lacks; nothing but the rest of a step if no words are given."""
    if not told:
        return f"{path!r} was saved within a step, after a part of it."
    return f"{path!r} lacks {' and '.join(filter(None, (', '.join(told[:-1]), told[-1])))}."


def history_of(run: str, step: int | None = None) -> History:
    """Return the newest checkpoint of a run at or before a step.

    Names with a number of batches, such as ``ep1-ba200-rank0.pt``, are read from the newest one back until one fits;
    checkpoints with other names are all read.

    Args:
        run: Path or URI of the folder of the run, which may be above the folder with its checkpoints; or of one
            checkpoint, a file or a sharded folder.
        step: Number of batches trained before the step; None for the newest checkpoint.

    Raises:
        FileNotFoundError: The path does not exist, or has no checkpoints.
        ValueError: The path is a checkpoint after the step, or a folder with several runs.

    >>> from composer import State
    >>> from composer.checkpoint import save_checkpoint
    >>> path = save_checkpoint(State(model=torch.nn.Linear(1, 1)), str(tmp_path / "ep0-ba0.pt"))
    >>> history_of(str(tmp_path), 5).before.batch, history_of(path).before.path == path
    (0, True)
    """
    names = list(_remote_names(run) if is_remote(run) else _local_names(local_path(run)))
    if not names:
        raise FileNotFoundError(f"{mask_text(run)!r} contains no checkpoint.")
    _check_one_run(run, names)
    last = float("inf") if step is None else step
    guesses = {name: _guess(name) for name in names}
    by_name = sorted((name for name in names if guesses[name] is not None), key=lambda name: cast(int, guesses[name]))
    unnamed = [name for name in names if guesses[name] is None]
    found = _Reader()
    best: CheckpointFacts | None = None
    for name in reversed([name for name in by_name if cast(int, guesses[name]) <= last]):
        best = found.complete(name)
        if best is not None and best.batch <= last:
            break
        best = None
    after: CheckpointFacts | None = None
    for name in unnamed:
        facts = found.complete(name)
        if facts is not None and facts.batch > last:
            after = facts
        elif facts is not None and (best is None or facts.batch > best.batch):
            best = facts
    if best is None and after is None:
        later = (name for name in by_name if cast(int, guesses[name]) > last)
        after = next((facts for name in later if (facts := found.complete(name)) is not None), None)
    if best is None and after is not None and (folder := run_folder(run)) != run.rstrip("/"):
        raise ValueError(_too_late(run, folder, after, cast(int, step)))
    return History(best, None if best is not None else after, found.incomplete, found.unreadable)


def _too_late(run: str, folder: str, facts: CheckpointFacts, step: int) -> str:
    """Return the message when the only checkpoint that is given lies after the step."""
    earlier = history_of(folder, step).before
    remedy = f"Give its folder, {mask_text(folder)!r}"
    if earlier is not None and earlier.run_name == facts.run_name:
        remedy += f", or an earlier checkpoint of the run, such as {mask_text(earlier.path)!r}"
    return f"{mask_text(run)!r} is the state at batch {facts.batch}, which is after step {step}. {remedy}."


def _check_one_run(run: str, names: list[str]) -> None:
    """Raise if checkpoints in several folders belong to several runs."""
    newest: dict[str, str] = {}
    for name in sorted(names, key=lambda one: _guess(one) or 0):
        newest[name.rpartition("/")[0] if is_remote(run) else str(Path(name).parent)] = name
    if len(newest) < 2:
        return
    runs: dict[str, str] = {}
    for folder, name in sorted(newest.items()):
        with contextlib.suppress(DamagedCheckpointError, FileNotFoundError, ValueError):
            runs.setdefault(facts_of(name).run_name or "", folder)
    runs.pop("", None)
    if len(runs) > 1:
        listed = ", ".join(f"{name} in {mask_text(folder)!r}" for name, folder in runs.items())
        raise ValueError(f"{mask_text(run)!r} contains several runs: {listed}. Give the folder of one.")


def run_folder(source: str) -> str:
    """Return the folder of a run that is given by its folder or by one of its checkpoints.

    Args:
        source: Path or URI.

    >>> run_folder("s3://runs/night/ep1-ba5.pt"), run_folder("runs/night/")
    ('s3://runs/night', 'runs/night')
    """
    source = source.rstrip("/") or source
    if is_remote(source):
        is_checkpoint = source.endswith((".pt", ".pth", ".ckpt"))
    else:
        is_checkpoint = local_path(source).is_file() or (local_path(source) / MANIFEST).is_file()
    return (source.rpartition("/")[0] or ".") if is_checkpoint else source


def facts_of(path: str) -> CheckpointFacts:
    """Return what a checkpoint says about its run; its tensors are not read.

    Args:
        path: Path or URI of the file or folder.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        DamagedCheckpointError: It is corrupted.
        UnsafeCheckpointError: Reading it would run code.

    >>> from composer import State
    >>> from composer.checkpoint import save_checkpoint
    >>> path = save_checkpoint(
    ...     State(model=torch.nn.Linear(1, 1)), str(tmp_path / "ep0-ba0.pt"), weights_only=True
    ... )
    >>> facts_of(path).missing[0]
    'optimizers'
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            local = Path(folder, path.rpartition("/")[2])
            get_file(path, local, progress_bar=False)
            return _facts(path, open_checkpoint(local, mapped=True))
    return _facts(path, open_checkpoint(local_path(path), mapped=True))


class _Reader:
    """Reads checkpoints, and notes those that are of no use."""

    def __init__(self) -> None:
        self.incomplete: dict[str, tuple[str, ...]] = {}
        self.unreadable: dict[str, str] = {}

    def complete(self, path: str) -> CheckpointFacts | None:
        """Return what a checkpoint says; None if it cannot be read or is not complete."""
        try:
            facts = facts_of(path)
        except (DamagedCheckpointError, FileNotFoundError, ValueError) as error:
            self.unreadable[path] = str(error)
            return None
        if facts.missing:
            self.incomplete[path] = facts.missing
            return None
        return facts


def _facts(path: str, content: dict[str, Any]) -> CheckpointFacts:
    state: dict[str, Any] = content["state"]
    # An engine such as DeepSpeed stores weights and optimizers in files of its own.
    needed = [name for name in _NEEDED if "engine" not in content or name not in ("model", "optimizers")]
    missing = [name for name in needed if name not in state] + ([] if content.get("rng") else ["rng"])
    metadata, program = state.get("metadata", {}), state.get("program")
    if "composer_version" not in metadata:
        missing.append("metadata")  # saved by another library, whose runs use random numbers in another way
    position = state.get("dataset_state", {}).get("train")
    ranks = position.get("ranks", [position]) if isinstance(position, dict) else []
    ending: dict[str, Any] = state.get("ending", {})
    kind = next((one.get("kind") for one in ranks if isinstance(one, dict)), None)
    if state.get("in_step"):
        missing.append(_REST_OF_STEP)
    if kind == "any" or any(one.get("kind") == "replay" and one.get("rng") is None for one in ranks):
        missing.append("dataset_state/train")
    return CheckpointFacts(
        path,
        int(state.get("timestamp", {}).get("Timestamp", {}).get("batch", 0)),
        state.get("rank_zero_seed"),
        metadata.get("world_size"),
        tuple(missing),
        program if isinstance(program, dict) else None,
        metadata,
        kind,
        state.get("run_name") or "",
        state.get("forked_from"),
        state.get("fingerprint"),
        _is_end(state),
        tuple(int(call["number"]) for call in ending.get("fit_calls", []) if "number" in call),
    )


def _is_end(state: dict[str, Any]) -> bool:
    """Return whether the state of a run has reached its ``max_duration``."""
    saved, end = state.get("timestamp", {}).get("Timestamp"), state.get("max_duration")
    if not isinstance(saved, dict) or end is None:
        return False
    timestamp = Timestamp()
    try:
        timestamp.load_state_dict(saved)
    except ValueError:  # of another library
        return False
    return timestamp.has_reached(ensure_time(end, TimeUnit.EPOCH))


def _guess(name: str) -> int | None:
    """Return the number of batches in the name of a checkpoint; None if there is none."""
    match = _BATCH_IN_NAME.search(name.rstrip("/").rpartition("/")[2])
    return None if match is None else int(match[1])


def _is_named_so(name: str) -> bool:
    """Return whether a file name may be that of a complete checkpoint of a run."""
    last = name.rpartition("/")[2]
    is_temporary = last.startswith((".", "exception-"))  # the step of the latter may be incomplete
    return not is_temporary and os.path.splitext(last)[1] in _SUFFIXES  # noqa: PTH122 - also a part of a URI


def _local_names(run: Path) -> Iterator[str]:
    """Yield the paths of the checkpoints in a local folder; symbolic links below it are not followed."""
    if run.is_file() or (run / MANIFEST).is_file():
        yield str(run)
        return
    if not run.is_dir():
        raise FileNotFoundError(f"There is no folder or checkpoint {str(run)!r}.")
    for folder, subfolders, files in os.walk(run):
        sharded = [name for name in subfolders if Path(folder, name, MANIFEST).is_file()]
        subfolders[:] = sorted(name for name in subfolders if name not in sharded and not name.startswith("."))
        yield from (str(Path(folder, name)) for name in sorted(sharded) if not Path(folder, name).is_symlink())
        for name in sorted(files):
            path = Path(folder, name)
            if _is_named_so(name) and not path.is_symlink() and _is_zip(path):
                yield str(path)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _remote_names(run: str) -> Iterator[str]:
    """Yield the URIs of the checkpoints in a remote folder."""
    folder = Folder(run)
    try:
        names = folder.names()
    finally:
        folder.close()
    if not names or names == [""] or MANIFEST in names:
        yield run.rstrip("/")
        return
    sharded = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    for name in names:
        if name.removesuffix(f"/{MANIFEST}") in sharded or (
            _is_named_so(name) and not any(name.startswith(f"{one}/") for one in sharded)
        ):
            yield join(run, name.removesuffix(f"/{MANIFEST}"))
