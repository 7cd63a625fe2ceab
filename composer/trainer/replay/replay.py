"""Replay a step: start from the newest checkpoint before it, train up to it without outputs, and record it."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from composer import dist, rng
from composer._numbers import whole_number
from composer._secrets.masking import mask_text
from composer._text import plural
from composer._version import __version__
from composer.checkpoint.at_step import CheckpointFacts, History, history_of, run_folder
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.name_placeholders import format_name
from composer.storage.downloads import fetched
from composer.storage.uris import is_remote, local_path
from composer.trainer.compilation import is_compiled
from composer.trainer.fingerprint.expect import expect_start
from composer.trainer.replay.file_guard import unchanged_files
from composer.trainer.replay.record import ReplayedStep
from composer.trainer.replay.recorder import StepRecorder, StepReplayed
from composer.trainer.resume import LoadOptions, apply_checkpoint, read_for_run, savers_of
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.trainer.run import Run
    from composer.trainer.trainer import Trainer

__all__ = ["Replay", "load_state", "not_reached", "replay"]


def replay(
    trainer: Trainer,
    run: Run,
    step: int,
    source: str | None,
    arguments: dict[str, Any],
    *,
    prompt: bool = False,
    allow_changes: bool = False,
) -> ReplayedStep:
    """Replay a step; see :meth:`.Trainer.replay`.

    Args:
        trainer: Made with the arguments of the run.
        run: Its run.
        step: Number of batches trained before the step.
        source: Path or URI of the run; None for the folder that the trainer saves to.
        arguments: Arguments of ``fit``, as in the run.
        prompt: Whether to stop in a Python prompt before the step.
        allow_changes: Whether to go on if the data or the initial weights are not those of the run.

    Raises:
        ValueError: The step is not part of the run, or cannot be repeated exactly.
    """
    replaying = Replay(trainer, run, step, source, allow_changes=allow_changes)
    replaying.load()
    record = replaying.train(trainer.fit, prompt=prompt, **arguments)
    if record is None:
        raise ValueError(not_reached(replaying.step, run))
    return record


def not_reached(step: int, run: Run) -> str:
    """Return the message when training ends before the step.

    Args:
        step: The step.
        run: The run that ended.
    """
    batch = run.state.timestamp.batch.value
    return f"Step {step} is not part of the run, which ends at batch {batch}: its last step is {batch - 1}."


class Replay:
    """The replay of one step by a trainer that has not trained yet.

    Args:
        trainer: Made with the arguments of the run.
        run: Its run.
        step: Number of batches trained before the step.
        source: Path or URI of the folder of the run, or of one checkpoint; None for the folder that the trainer saves
            to.
        allow_changes: Whether to go on with a warning if the data or the initial weights are not those of the run.
        argument: The user's name for ``step``, for messages.

    Attributes:
        start: Where training starts: the path of a checkpoint, or "seed N"; empty before :meth:`load`.

    Raises:
        TypeError: ``step`` is not an integer.
        ValueError: ``step`` is negative, or the trainer does a dry run.
        RuntimeError: The trainer has trained.

    >>> Replay(None, None, -1)
    Traceback (most recent call last):
    ...
    ValueError: step must be 0 or greater, but got -1.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: Run,
        step: int,
        source: str | None = None,
        *,
        allow_changes: bool = False,
        argument: str = "step",
    ) -> None:
        step = whole_number(argument, step)
        if trainer._dry_run:  # pyright: ignore[reportPrivateUsage]
            raise ValueError("dry_run=True only tries two batches; create the Trainer without it.")
        if run.state.previous_timestamp is not None:
            raise RuntimeError(
                f"This trainer has trained to batch {run.state.timestamp.batch.value}. Create another trainer with "
                f"the arguments of the run, and call this before fit."
            )
        self._trainer, self._run, self.step, self._source = trainer, run, step, source
        self.start = ""
        self._allow_changes = allow_changes
        # The checkpoint that tells the start of the run; None before load, without one, or once it is compared.
        self._known: CheckpointFacts | None = None
        # Whether the call of fit trains with the data of the checkpoint.
        self._same_data = True

    def load(self) -> bool:
        """Load the newest checkpoint at or before the step, unless the trainer is as near; return whether one is.

        All ranks must call this.

        Raises:
            FileNotFoundError: The folder has no checkpoints.
            ValueError: The step cannot be repeated exactly from there.
        """
        for destination in self._run.logger.destinations:
            destination.__discard__()  # such as hyperparameters, which would begin a new file
        state, own = self._run.state, self._run.state.timestamp.batch.value
        history = self._history()
        chosen = history.before
        if chosen is not None and (own > self.step or chosen.batch > own or own == 0):
            self._check(chosen)
            self._load(chosen)
            self._known = chosen
            return True
        if own > self.step:
            raise ValueError(
                _nothing_before(self.step, history, f"the trainer loaded {state.load_path!r}, batch {own}")
            )
        if own:
            self.start = mask_text(str(state.load_path))
            self._known = CheckpointFacts(self.start, int(own), fingerprint=state.fingerprint)
            return False
        self._check_seed(history)
        self._known = history.after
        self.start = f"seed {state.rank_zero_seed}"
        return False

    def train(self, fit: Callable[..., None], *, prompt: bool = False, **arguments: Any) -> ReplayedStep | None:
        """Train up to and including the step; return its record, or None if training ends before it.

        Args:
            fit: The trainer's ``fit``.
            prompt: Whether to stop in a Python prompt before the step.
            **arguments: Arguments of ``fit``, as in the run.
        """
        recorder = StepRecorder(self._trainer, self._run, self.step, self.start, prompt=prompt)
        self.train_with(recorder, fit, **arguments)
        return recorder.record

    def train_with(self, recorder: Callback, fit: Callable[..., None], **arguments: Any) -> None:
        """Train as the run did, with another callback, until it raises :class:`.StepReplayed`.

        Args:
            recorder: The callback.
            fit: The trainer's ``fit``.
            **arguments: Arguments of ``fit``, as in the run.
        """
        self._expect_start(arguments)
        arguments.pop("spin_dataloaders", None)  # the run did not start its data again at the checkpoint
        self._run.options = dataclasses.replace(self._run.options, spin_dataloaders=True)
        remedy = "Replays change no files: write to a new one."
        own = "Replays change no files: set writes_output = True in the class {name}, so that it is left out."
        with (
            _silent(self._trainer, self._run, recorder),
            contextlib.suppress(StepReplayed),
            warnings.catch_warnings(),
            unchanged_files(self._folders(), remedy, callback_remedy=own, own_thread=True),
        ):
            # Of a program that calls fit repeatedly, some calls are complete.
            warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
            fit(**arguments)

    def _expect_start(self, arguments: dict[str, Any]) -> None:
        """Let the first call of ``fit`` that trains compare what it starts from with the run."""
        known, self._known = self._known, None
        if known is not None:
            expect_start(
                self._run, known, self.start, raises=not self._allow_changes, compare_data=lambda: self._same_data
            )
        elif arguments.get("train_dataloader") is not None:
            self._same_data = False  # data of a call after the one in which the checkpoint was saved

    def _folders(self) -> list[str]:
        """Return the local folders whose files may not change."""
        name = self._run.state.run_name
        folders = [format_name(saver.folder, name) for saver in savers_of(self._run.state)]
        sources = folders if self._source is None else [run_folder(self._source)]
        return [".", *(str(local_path(one)) for one in sources if not is_remote(one))]

    def _history(self) -> History:
        """Return the checkpoints of the run around the step; the same on all ranks."""
        if self._source is not None:
            source = self._source
            return run_on_rank_zero(lambda: history_of(source, self.step), "look for checkpoints")
        name = self._run.state.run_name
        folders = [format_name(saver.folder, name) for saver in savers_of(self._run.state) if not saver.weights_only]

        def look() -> History:
            found: History | None = None
            for folder in folders:
                with contextlib.suppress(FileNotFoundError):  # nothing was saved there yet
                    one = history_of(folder, self.step)
                    is_nearer = found is None or _batch(one) > _batch(found)
                    found = one if is_nearer else found
            return History() if found is None else found

        return run_on_rank_zero(look, "look for checkpoints")

    def _check(self, facts: CheckpointFacts) -> None:
        """Raise if training from a checkpoint cannot be bit for bit that of the run; warn if it may not be."""
        self._check_machine(facts)
        state, path = self._run.state, mask_text(facts.path)
        loader: Any = state.train_phase.loader
        data = None if loader is None else loader.dataloader
        if facts.data == "replay" and isinstance(data, Iterator):
            raise ValueError(
                f"The training data is an iterator, {type(data).__name__}, whose position {path!r} does not have. For "
                f"the next run, use data with indices, or with state_dict and load_state_dict (as torchdata's "
                f"StatefulDataLoader)."
            )
        if is_compiled(self._run):
            message = (
                "The replay may differ from the run in the last bits: the graphs that torch.compile makes for several "
                "shapes depend on the first ones it meets. compile_config={'dynamic': False} makes them independent."
            )
            warnings.warn(message, ComposerWarning, stacklevel=5)

    def _check_machine(self, facts: CheckpointFacts) -> None:
        """Raise if the number of ranks is not that of a checkpoint; warn if the device, precision or torch is not."""
        state, path = self._run.state, mask_text(facts.path)
        if facts.world_size is not None and facts.world_size != dist.get_world_size():
            raise ValueError(
                f"{path!r} was saved by {plural(facts.world_size, 'rank')}, but there are {dist.get_world_size()}: the "
                f"same steps would be summed in another order. Start as many ranks: composer -n {facts.world_size} ..."
            )
        now = {
            "composer_version": __version__,
            "torch_version": str(torch.__version__),
            "device": state.device.name,
            "precision": state.precision.value,
        }
        other = {name: facts.metadata.get(name, value) for name, value in now.items()}
        differing = [f"{name} {other[name]}, now {value}" for name, value in now.items() if other[name] != value]
        if differing:
            message = f"The replay may differ from the run in the last bits; {path!r} has {'; '.join(differing)}."
            warnings.warn(message, ComposerWarning, stacklevel=5)

    def _check_seed(self, history: History) -> None:
        """Raise if a start from the seed is not the start of the run."""
        seed, known = self._run.state.rank_zero_seed, history.after
        if known is None and (history.incomplete or history.unreadable):
            raise ValueError(_nothing_before(self.step, history, "nothing tells the seed of the run"))
        if known is not None:
            self._check_machine(known)
            if known.seed != seed:
                raise ValueError(
                    _nothing_before(
                        self.step,
                        history,
                        f"the run cannot be repeated from its start: its seed was {known.seed}, and is now {seed}. "
                        f"Give the Trainer a seed, and create the model after torch.manual_seed",
                    )
                )

    def _load(self, facts: CheckpointFacts) -> None:
        load_state(self._trainer, self._run, facts.path)
        self.start = mask_text(facts.path)

    @property
    def run(self) -> Run:
        """The run that is replayed."""
        return self._run


def load_state(
    trainer: Trainer,
    run: Run,
    path: str,
    *,
    edit: Callable[[dict[str, Any]], Sequence[str]] | None = None,
) -> None:
    """Load a checkpoint into a trainer that has not trained, as if it had been created with it; all ranks call this.

    Loggers, displays and callbacks that write get no state: they have outputs of their own.

    Args:
        trainer: The trainer.
        run: Its run.
        path: Path or URI of the checkpoint.
        edit: Changes the content before it is loaded; returns the names of algorithms that are not recreated although
            the checkpoint was saved with them.
    """
    with fetched(path, progress_bar=False) as local:
        content = read_for_run(run, local)
        options = LoadOptions(path, exclude_algorithms=() if edit is None else edit(content))
        with _silent(trainer, run):
            apply_checkpoint(run, options, path, content, is_prepared=True)
    # As when a trainer is created.
    rng.seed_all(run.state.seed)
    trainer._autoresumed = True  # pyright: ignore[reportPrivateUsage]
    trainer._fit_calls.resume(run)  # pyright: ignore[reportPrivateUsage] - its calls of fit are those of the run
    trainer._eval_batches_before_fit = 0  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def _silent(trainer: Trainer, run: Run, recorder: Callback | None = None) -> Generator[None]:
    """Leave out loggers, displays, and callbacks that write; they come back, to be closed with the trainer.

    Args:
        trainer: The trainer.
        run: Its run.
        recorder: A callback to add.
    """
    state, engine, logger, model = run.state, run.engine, run.logger, run.state.model
    callbacks = list(state.callbacks)
    shown = trainer._shown  # pyright: ignore[reportPrivateUsage]
    quiet = Logger(state, [])
    try:
        engine.logger = run.logger = trainer.logger = quiet
        trainer._shown = None  # pyright: ignore[reportPrivateUsage]
        if getattr(model, "logger", None) is logger:
            model.logger = quiet  # type: ignore[assignment]
        kept = [callback for callback in callbacks if not callback.writes_output]
        state.callbacks = kept if recorder is None else [*kept, recorder]
        yield
    finally:
        engine.logger = run.logger = trainer.logger = logger
        trainer._shown = shown  # pyright: ignore[reportPrivateUsage]
        if getattr(model, "logger", None) is quiet:
            model.logger = logger  # type: ignore[assignment]
        state.callbacks = callbacks


def _batch(history: History) -> int:
    return -1 if history.before is None else history.before.batch


def _nothing_before(step: int, history: History, why: str) -> str:
    """Return the message when no checkpoint is at or before the step."""
    parts = [f"Step {step} cannot be replayed: the run has no complete checkpoint at or before it, and {why}."]
    if history.after is not None:
        parts.append(f"The first complete checkpoint is at batch {history.after.batch}.")
    if history.problems:
        parts.append(history.problems)
    parts.append("Save checkpoints more often (save_interval), and keep them.")
    return " ".join(parts)
