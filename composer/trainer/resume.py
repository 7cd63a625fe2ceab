"""Resume from a checkpoint (``load_path``): model, optimizers, data position, random state; save when interrupted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer._secrets.masking import mask_text
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.file_format import damage_of
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.load import open_checkpoint, read_checkpoint, restore
from composer.checkpoint.named_states import as_named
from composer.checkpoint.on_all_ranks import read_on_rank_zero
from composer.checkpoint.save import save_checkpoint
from composer.core.algorithm import Algorithm, find_algorithm
from composer.core.name_placeholders import format_name
from composer.optim.decoupled_sgd import DecoupledSGDW
from composer.storage.downloads import fetched
from composer.trainer.default_optimizer import make_default_optimizer
from composer.trainer.float8_model import prepare_model
from composer.trainer.run import Run
from composer.trainer.schedules import bind
from composer.trainer.signals import Interrupted, Interruption
from composer.trainer.training_data import replay_first_batch, resume_between_epochs, start_epoch_iterator

if TYPE_CHECKING:
    from pathlib import Path

    from composer.core.state import State

__all__ = [
    "LoadOptions",
    "SaveOnStop",
    "apply_checkpoint",
    "find_algorithm_class",
    "load",
    "read_for_run",
    "resume_at",
    "savers_of",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """The ``load_*`` arguments of the trainer.

    Attributes:
        path: Path of the checkpoint, which may contain placeholders, or None.
        object_store: The object store to download from, or None for a local path or URI.
        weights_only: Whether to load only the model weights.
        strict: Whether the parameter names must match exactly.
        progress_bar: Whether to show the progress of a download.
        ignore_keys: What not to load.
        exclude_algorithms: Names of algorithms not to apply again.

    >>> LoadOptions().path is None
    True
    """

    path: str | None = None
    object_store: Any = None
    weights_only: bool = False
    strict: bool = True
    progress_bar: bool = True
    ignore_keys: IgnoreKeys = None
    exclude_algorithms: Sequence[str] = field(default=())


def find_algorithm_class(name: str) -> type[Algorithm] | None:
    """Return the class of an algorithm, built-in or custom, by its name; None if there is none.

    Args:
        name: The name of the class.

    >>> find_algorithm_class("BlurPool").__name__, find_algorithm_class("Nothing")
    ('BlurPool', None)
    """
    from composer import algorithms

    found = getattr(algorithms, name, None) if name in algorithms.__all__ else None
    return found if isinstance(found, type) and issubclass(found, Algorithm) else find_algorithm(name)


def savers_of(state: State) -> list[CheckpointSaver]:
    """Return the checkpoint savers of a run.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> savers_of(State(model=torch.nn.Linear(1, 1)))
    []
    """
    return [callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)]


def load(run: Run, options: LoadOptions) -> None:
    """Prepare the model with the strategy (wrap or shard it), and load the checkpoint, if one is given.

    Contents that apply only when training starts, such as the random state, are kept in ``state.loaded``.

    Args:
        run: The run.
        options: The path and how to load.
    """
    state = run.state
    if options.path is None:
        if run.strategy.has_own_optimizer_step and not state.optimizers:
            make_default_optimizer(state)
            bind(run)
        prepare_model(run)
        return
    name = state.run_name
    path = format_name(options.path, name, state.timestamp, rank=0)
    with contextlib.ExitStack() as files:
        try:
            local = files.enter_context(fetched(path, options.object_store, progress_bar=options.progress_bar))
            content = read_for_run(run, local)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"load_path={mask_text(str(options.path))!r}: {error}") from error
        apply_checkpoint(run, options, path, content)


def apply_checkpoint(
    run: Run, options: LoadOptions, path: str, content: dict[str, Any], *, is_prepared: bool = False
) -> None:
    """Prepare the model with the strategy, and restore the run from the content of a checkpoint.

    Args:
        run: The run.
        options: How to load.
        path: Path of the checkpoint, for messages.
        content: Result of :func:`read_for_run`.
        is_prepared: Whether the strategy has prepared the model before.
    """
    state = run.state
    if run.strategy.has_own_optimizer_step and not state.optimizers:
        make_default_optimizer(state)
        bind(run)
    if not state.optimizers and not options.weights_only:
        _prepare_optimizers(run, content.get("state", {}))
    run.state.loaded = restore(
        state,
        run.logger,
        content,
        weights_only=options.weights_only,
        strict=options.strict,
        ignore_keys=options.ignore_keys,
        exclude_algorithms=options.exclude_algorithms,
        algorithm_passes=run.engine.algorithm_passes,
        prepare=None if is_prepared else lambda _: prepare_model(run),
        source=repr(mask_text(path)),
    )
    state.load_path = str(path)
    if run.state.loaded.rng is None:
        run.logger.notice(f"loaded the weights of {path}", kind="load")
    else:
        epoch, batch = int(state.timestamp.epoch), int(state.timestamp.batch)
        run.logger.notice(f"resumed from {path} at epoch {epoch}, batch {batch}", kind="resumption")


def read_for_run(run: Run, path: Path) -> dict[str, Any]:
    """Read the content of a checkpoint; sharded tensors are read later. All ranks must call this.

    If the strategy reads on rank 0 only, a checkpoint file is read there and broadcast.

    Args:
        run: The run.
        path: The local file or folder.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        DamagedCheckpointError: The checkpoint is corrupted.
        UnsafeCheckpointError: Reading the checkpoint would run code.
    """
    if run.strategy.rank_zero_reads:
        is_sharded_checkpoint = [path.is_dir()]
        dist.broadcast_object_list(is_sharded_checkpoint)
        if not is_sharded_checkpoint[0]:
            return read_on_rank_zero(lambda: read_checkpoint(path))
    return open_checkpoint(path, mapped=run.strategy.shards_weights, all_ranks=True)


def _prepare_optimizers(run: Run, saved: dict[str, Any]) -> None:
    """Create the default optimizer for its saved state; without training data, drop the saved optimizer states."""
    if run.state.train_phase.loader is None:
        for name in ("optimizers", "schedulers"):
            saved.pop(name, None)
    elif list(as_named(saved.get("optimizers", {}))) == [DecoupledSGDW.__name__]:
        make_default_optimizer(run.state)
        bind(run)


def resume_at(run: Run) -> None:
    """Restore the data position and the random state of the loaded checkpoint, once per checkpoint.

    Args:
        run: The run, after ``FIT_START``. Unless ``run.options.spin_dataloaders``, the data starts from the beginning.
    """
    phase = run.state.train_phase
    replay_first_batch(run)
    if phase.resume_position is not None:
        if not run.options.spin_dataloaders:
            phase.resume_position = None
        is_at_start = phase.timestamp.batch_in_epoch.value == 0
        if is_at_start and (phase.resume_position is None or "ended" in phase.resume_position):
            resume_between_epochs(run)
        else:
            phase.iterator = start_epoch_iterator(run)
    loaded, run.state.loaded = run.state.loaded, None
    if loaded is not None and loaded.rng is not None:
        # After the data: starting its iterator may use random numbers.
        if dist.get_global_rank() >= len(loaded.rng):
            rng.seed_all(run.state.seed)  # this rank did not exist when the checkpoint was saved
        with damage_of(repr(mask_text(str(run.state.load_path))), "'rng'"):
            rng.load_rng_state(loaded.rng)


@dataclass(frozen=True)
class SaveOnStop:
    """How to save when training is stopped by a signal or an exception.

    Attributes:
        signals: Signals to handle during training, if checkpoints are saved.
        save_on_exception: Whether an exception saves a separate checkpoint.
        autoresume: Whether the same command resumes.

    >>> SaveOnStop().save_on_exception
    False
    """

    signals: Sequence[int] = ()
    save_on_exception: bool = False
    autoresume: bool = False

    @contextlib.contextmanager
    def save_on_interrupt(self, run: Run) -> Generator[None]:
        """Save a checkpoint if a signal or an exception ends the block.

        Args:
            run: The run, which the block trains.

        Raises:
            KeyboardInterrupt: After Ctrl-C.
            SystemExit: After another signal.
        """
        savers = savers_of(run.state)
        if not savers:
            try:
                yield
            except KeyboardInterrupt:
                text = "interrupted by Ctrl-C; nothing was saved, as there is no save_folder"
                run.logger.notice(text, urgent=True, kind="interruption")
                raise
            return
        try:
            with Interruption(self.signals) as run.interruption:
                yield
        except Interrupted as interrupted:
            for saver in savers:
                saver.save(run.state, run.logger)
                saver.fit_end(run.state, run.logger)
            run.state.train_phase.evaluation_event = None
            run.logger.notice(self._message(interrupted, savers), urgent=True, kind="interruption")
            interrupted.exit_process()
        except Exception:
            if self.save_on_exception:
                _save_at_exception(run, savers[0])
            raise
        finally:
            run.interruption = None

    def _message(self, interrupted: Interrupted, savers: Sequence[CheckpointSaver]) -> str:
        """Return the message after a signal: what was saved, and how to continue."""
        by = f"interrupted by {interrupted}"
        full = [saver for saver in savers if not saver.weights_only]
        linked = [saver for saver in full if saver.latest_filename is not None]
        path = next((saver.__location__ for saver in linked or full or savers if saver.__location__ is not None), None)
        if path is None:
            return f"{by}; nothing was saved"
        if not linked:
            return f"{by}; saved {path}" + ("; give it as load_path to continue" if full else "")
        return (
            f"{by}; saved {path}; run the same command {'' if self.autoresume else 'with autoresume=True '}to continue"
        )


def _save_at_exception(run: Run, saver: CheckpointSaver) -> None:
    """Save a checkpoint that autoresume does not find; failures are logged, so the original exception is raised."""
    state = run.state
    if dist.get_world_size() > 1:
        # Other ranks may be anywhere: saving together would hang.
        _log.warning("The state at the exception is not saved, since that requires all ranks; use the last checkpoint.")
        return
    # As one file, with a name that autoresume does not look for.
    folders, state.checkpoint_folders = state.checkpoint_folders, None
    try:
        path = save_checkpoint(state, saver.path_of(state, f"exception-{saver.filename.filename}"))
    except Exception:
        _log.exception("The checkpoint of the state at the exception could not be saved.")
    else:
        run.logger.notice(f"the state at the exception is in {path}", urgent=True)
    finally:
        state.checkpoint_folders = folders
