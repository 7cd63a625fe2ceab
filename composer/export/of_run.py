"""Export the model of a run, with the weights that evaluation uses, such as EMA averages."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.core.event import Event
from composer.core.match_and_apply import bind
from composer.core.name_placeholders import format_name
from composer.export.formats import ExportFormat
from composer.export.inference import Transform, export_with_logger

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["evaluation_weights", "export_of_run"]


@contextlib.contextmanager
def evaluation_weights(state: State, logger: Logger) -> Generator[None]:
    """Context in which the model has the weights that it predicts with, such as EMA averages; restored on exit.

    While replicas train apart (DiLoCo, local SGD), these are the last synchronized ones, or averages of those.

    Args:
        state: The state of the run; its algorithms run their ``PREDICT_START`` and ``PREDICT_END`` events.
        logger: Logger for the algorithms.

    >>> from composer import Algorithm, Logger, State
    >>> class Zero(Algorithm):
    ...     def predict_start(self, state, logger):
    ...         self.kept = state.model.weight.item()
    ...         torch.nn.init.zeros_(state.model.weight)
    ...
    ...     def predict_end(self, state, logger):
    ...         torch.nn.init.constant_(state.model.weight, self.kept)
    >>> state = State(model=torch.nn.Linear(1, 1), algorithms=Zero())
    >>> with evaluation_weights(state, Logger(state)):
    ...     print(state.model.weight.item())
    0.0
    >>> state.model.weight.item() == 0
    False
    """
    with contextlib.nullcontext() if state.replicas is None else state.replicas.evaluation_weights():
        _fire(Event.PREDICT_START, state, logger)
        try:
            yield
        finally:
            _fire(Event.PREDICT_END, state, logger)


def export_of_run(
    state: State,
    logger: Logger,
    save_format: str | ExportFormat,
    save_path: str | Path,
    save_object_store: Any = None,
    sample_input: Any = None,
    transforms: Transform | Sequence[Transform] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Export the model of a run as trained: with replaced layers and averaged weights.

    Args:
        state: The state of the run.
        logger: Uploads the file, if one of its destinations stores files.
        save_format: ``"torchscript"``, ``"onnx"`` or ``"torch_export"``.
        save_path: Path of the file; may contain ``{run_name}``, ``{epoch}``, ``{batch}`` and other placeholders.
        save_object_store: Object store to upload to, instead of a local path or the logger's destinations.
        sample_input: A batch; None uses the last training batch.
        transforms: See :func:`.export_for_inference`.
        input_names: See :func:`.export_for_inference`.
        output_names: See :func:`.export_for_inference`.

    Raises:
        ValueError: The format requires a batch and none is available, or an argument does not match the model.

    >>> import tempfile
    >>> from composer import Logger, State
    >>> state = State(model=torch.nn.Linear(2, 1), run_name="night")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/{run_name}.pt2"
    ...     export_of_run(state, Logger(state), "torch_export", path, sample_input=torch.ones(3, 2))
    ...     torch.export.load(f"{folder}/night.pt2").module()(torch.ones(5, 2)).shape
    torch.Size([5, 1])
    """
    batch = state.batch if sample_input is None else sample_input
    with evaluation_weights(state, logger):
        export_with_logger(
            state.model,
            save_format,
            format_name(save_path, state.run_name, state.timestamp),
            logger,
            save_object_store=save_object_store,
            sample_input=None if batch is None else (batch, {}),
            transforms=transforms,
            input_names=input_names,
            output_names=output_names,
        )


def _fire(event: Event, state: State, logger: Logger) -> None:
    # Undo in reverse order, as the engine does at events that end something.
    algorithms = state.algorithms if event.is_before_event else list(reversed(state.algorithms))
    for algorithm in algorithms:
        if bind(algorithm, "match")(event, state, logger):
            bind(algorithm, "apply")(event, state, logger)
