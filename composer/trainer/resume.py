"""Going on where another process stopped."""

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
from composer.trainer.batch_loading import begin_pass, go_between, touch
from composer.trainer.default_optimizer import make_default_optimizer
from composer.trainer.run import Run
from composer.trainer.schedules import bind
from composer.trainer.signals import Interrupted, Interruption

if TYPE_CHECKING:
    from pathlib import Path

    from composer.core.state import State

__all__ = [
    "LoadOptions",
    "Stopping",
    "give",
    "load",
    "method_named",
    "opened",
    "resume_at",
    "savers_of",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """What is loaded when a trainer is made, and how.

    Attributes:
        path: The checkpoint, which may have placeholders, or None.
        object_store: Where the path is, if it is no path of this machine.
        weights_only: Whether to leave all but the weights as they are.
        strict: Whether the names of the weights must be the same.
        progress_bar: Whether to show the progress of a download.
        ignore_keys: What to leave out.
        exclude_algorithms: Methods that are not made again.

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


def method_named(name: str) -> type[Algorithm] | None:
    """Return the class of a method, of ours or of the user's, by its name; None if there is none.

    Args:
        name: The name of the class.

    >>> method_named("BlurPool").__name__, method_named("Nothing")
    ('BlurPool', None)
    """
    from composer import algorithms

    found = getattr(algorithms, name, None) if name in algorithms.__all__ else None
    return found if isinstance(found, type) and issubclass(found, Algorithm) else find_algorithm(name)


def savers_of(state: State) -> list[CheckpointSaver]:
    """Return what saves checkpoints in a run.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> savers_of(State(model=torch.nn.Linear(1, 1)))
    []
    """
    return [callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)]


def load(run: Run, options: LoadOptions) -> None:
    """Make the model ready for training by its strategy, and give the run what a checkpoint holds, if there is one.

    What is to happen when training begins is kept in the run.

    Args:
        run: The run.
        options: The path and how to load.
    """
    state = run.state
    if options.path is None:
        if run.strategy.owns_step and not state.optimizers:
            make_default_optimizer(state)
            bind(run)
        run.strategy.prepare(state)
        return
    name = state.run_name
    path = format_name(options.path, name, state.timestamp, rank=0)
    with contextlib.ExitStack() as files:
        try:
            local = files.enter_context(fetched(path, options.object_store, progress_bar=options.progress_bar))
            content = opened(run, local)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"load_path={mask_text(str(options.path))!r}: {error}") from error
        give(run, options, path, content)


def give(run: Run, options: LoadOptions, path: str, content: dict[str, Any]) -> None:
    """Make the model ready for training by its strategy, and give the run the content of a checkpoint.

    Args:
        run: The run.
        options: How to load.
        path: Where the content is from.
        content: What :func:`opened` returned.
    """
    state = run.state
    if run.strategy.owns_step and not state.optimizers:
        make_default_optimizer(state)
        bind(run)
    if not state.optimizers and not options.weights_only:
        _prepare_optimizers(run, content.get("state", {}))
    run.loaded = restore(
        state,
        run.logger,
        content,
        weights_only=options.weights_only,
        strict=options.strict,
        ignore_keys=options.ignore_keys,
        exclude_algorithms=options.exclude_algorithms,
        algorithm_passes=run.engine.algorithm_passes,
        prepare=run.strategy.prepare,
        source=repr(mask_text(path)),
    )
    state.load_path = str(path)
    if run.loaded.rng is None:
        run.logger.notice(f"loaded the weights of {path}")
    else:
        epoch, batch = int(state.timestamp.epoch), int(state.timestamp.batch)
        run.logger.notice(f"resumed from {path} at epoch {epoch}, batch {batch}")


def opened(run: Run, path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, read no further than all ranks have to; all must call this.

    Args:
        run: The run.
        path: The file or folder on this machine.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.
    """
    if run.strategy.rank_zero_reads:
        is_sharded_checkpoint = [path.is_dir()]
        dist.broadcast_object_list(is_sharded_checkpoint)
        if not is_sharded_checkpoint[0]:
            return read_on_rank_zero(lambda: read_checkpoint(path))
    return open_checkpoint(path, mapped=run.strategy.shards_weights, all_ranks=True)


def _prepare_optimizers(run: Run, saved: dict[str, Any]) -> None:
    """Make the default optimizer for its saved state; where nothing is to be trained, leave such states out."""
    if run.state.train_phase.loader is None:
        for name in ("optimizers", "schedulers"):
            saved.pop(name, None)
    elif list(as_named(saved.get("optimizers", {}))) == [DecoupledSGDW.__name__]:
        make_default_optimizer(run.state)
        bind(run)


def resume_at(run: Run) -> None:
    """Bring the data and the random generators to where they were when the checkpoint was saved; once for each.

    Args:
        run: The run, after ``FIT_START``; ``spin_dataloaders`` in its options is whether the training data is taken up
            in the middle of a pass, or begun anew.
    """
    phase = run.state.train_phase
    touch(run)
    if phase.resume is not None:
        if not run.options.spin_dataloaders:
            phase.resume = None
        if phase.timestamp.batch_in_epoch.value == 0:
            go_between(run)
        else:
            phase.iterator = begin_pass(run)
    loaded, run.loaded = run.loaded, None
    if loaded is not None and loaded.rng is not None:
        # After the data, which a pass that is begun again may have drawn random numbers for.
        if dist.get_global_rank() >= len(loaded.rng):
            rng.seed_all(run.state.seed)  # there was no such process when it was saved
        with damage_of(repr(mask_text(str(run.state.load_path))), "'rng'"):
            rng.load_rng_state(loaded.rng)


@dataclass(frozen=True)
class Stopping:
    """What happens when training is stopped from outside, or by an exception.

    Attributes:
        signals: Those that are noted while training, where checkpoints are saved.
        save_on_exception: Whether an exception saves a checkpoint of its own.
        autoresume: Whether the same command resumes.

    >>> Stopping().save_on_exception
    False
    """

    signals: Sequence[int] = ()
    save_on_exception: bool = False
    autoresume: bool = False

    @contextlib.contextmanager
    def around(self, run: Run) -> Generator[None]:
        """Save what a signal or an exception would lose.

        Args:
            run: The run; the block trains it.

        Raises:
            KeyboardInterrupt: Ctrl-C was noted.
            SystemExit: Another signal was.
        """
        savers = savers_of(run.state)
        if not savers:
            try:
                yield
            except KeyboardInterrupt:
                run.logger.notice("interrupted by Ctrl-C; nothing was saved, as there is no save_folder", urgent=True)
                raise
            return
        try:
            with Interruption(self.signals) as run.interruption:
                yield
        except Interrupted as interrupted:
            for saver in savers:
                saver.save(run.state, run.logger)
                saver.fit_end(run.state, run.logger)
            run.state.train_phase.stage = None
            run.logger.notice(self._told(interrupted, savers), urgent=True)
            interrupted.leave()
        except Exception:
            if self.save_on_exception:
                _save_apart(run, savers[0])
            raise
        finally:
            run.interruption = None

    def _told(self, interrupted: Interrupted, savers: Sequence[CheckpointSaver]) -> str:
        """What to tell of a run that a signal has ended: what is saved, and how to continue."""
        by = f"interrupted by {interrupted}"
        whole = [saver for saver in savers if not saver.weights_only]
        linked = [saver for saver in whole if saver.latest_filename is not None]
        path = next((saver.__location__ for saver in linked or whole or savers if saver.__location__ is not None), None)
        if path is None:
            return f"{by}; nothing was saved"
        if not linked:
            return f"{by}; saved {path}" + ("; give it as load_path to continue" if whole else "")
        return (
            f"{by}; saved {path}; run the same command {'' if self.autoresume else 'with autoresume=True '}to continue"
        )


def _save_apart(run: Run, saver: CheckpointSaver) -> None:
    """Save a checkpoint that resumption does not find, and let nothing hide the exception that is under way."""
    state = run.state
    if dist.get_world_size() > 1:
        # The others may be anywhere: to save with them would be to wait for them.
        _log.warning("The state at the exception is not saved, as that takes all processes; see the last checkpoint.")
        return
    # As one file, whose name resumption does not look for.
    folders, state.checkpoint_folders = state.checkpoint_folders, None
    try:
        path = save_checkpoint(state, saver.path_of(state, f"exception-{saver.filename.filename}"))
    except Exception:
        _log.exception("The checkpoint of the state at the exception could not be saved.")
    else:
        run.logger.notice(f"the state at the exception is in {path}", urgent=True)
    finally:
        state.checkpoint_folders = folders
