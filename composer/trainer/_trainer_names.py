"""Trainer attributes that scripts read, such as ``local_hparams`` and ``spin_dataloaders``; copying and pickling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.data_spec import DataSpec
    from composer.core.state import State
    from composer.trainer.run import Run

__all__ = ["TrainerNames"]

_NO_COPY = (
    "A Trainer cannot be copied or pickled: it owns data loaders, loggers and process groups. Copy trainer.state.model "
    "for the weights; to continue the run elsewhere, call trainer.save_checkpoint(path) and create "
    "Trainer(load_path=path)."
)


class TrainerNames:
    """Base class of the Trainer with attributes that forward to its run and state.

    Attributes:
        auto_log_hparams: Whether to log the arguments of the trainer as hyperparameters.
        local_hparams: The logged hyperparameters; empty unless ``auto_log_hparams``.
        python_log_level: Level of the library's log messages.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> with Trainer(model=model, auto_log_hparams=True, progress_bar=False) as trainer:
    ...     trainer.local_hparams["eval_interval"], trainer._original_model is model
    (1, True)
    """

    state: State
    _run: Run
    auto_log_hparams: bool = False
    python_log_level: str | None = None
    local_hparams: dict[str, Any]

    def __copy__(self) -> Self:
        """Return another trainer object for the same run."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Raise; when copying an object that refers to the trainer, return the trainer itself."""
        if not memo:
            raise TypeError(_NO_COPY)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Raise, unless the trainer is not initialized."""
        if self.__dict__:
            raise TypeError(_NO_COPY)
        return {}

    @property
    def _train_data_spec(self) -> DataSpec | None:
        """The training data."""
        return self.state.train_phase.loader

    @property
    def _original_model(self) -> Any:
        """The model that was given, compiled or sharded in place."""
        return self.state.model

    @property
    def _scheduler_step_frequency(self) -> TimeUnit:
        """How often schedules step."""
        return TimeUnit.BATCH if self._run.options.step_schedulers_every_batch else TimeUnit.EPOCH

    @property
    def _backwards_create_graph(self) -> bool:
        """Whether gradients are differentiable."""
        return self._run.options.create_graph

    @property
    def accumulate_train_batch_on_tokens(self) -> bool | None:
        """Whether microbatches are weighted by tokens; None decides by the batch."""
        return self._run.options.weight_by_tokens

    @property
    def spin_dataloaders(self) -> bool:
        """Whether a resumed run continues in the middle of the data."""
        return self._run.options.spin_dataloaders

    @property
    def first_train_batch_complete(self) -> bool:
        """Whether the first batch has been trained."""
        return self.state.timestamp.batch.value > 0
