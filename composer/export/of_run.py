"""Exporting the model of a run."""

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
    """Have the weights in the model that it predicts with, such as those that EMA averages, and then its own again.

    Args:
        state: The state of the run, of whose algorithms those that act at ``PREDICT_START`` and ``PREDICT_END`` do so.
        logger: Handed to them.

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
    """Export the model of a run as it has been trained: with layers replaced, and weights averaged.

    Args:
        state: The state of the run.
        logger: Takes the file, if one of its destinations keeps files.
        save_format: ``"torchscript"``, ``"onnx"`` or ``"torch_export"``.
        save_path: Where to; may have ``{run_name}``, ``{epoch}``, ``{batch}``, ... in it.
        save_object_store: Where to, if not to this machine or the logger's destinations.
        sample_input: A batch; None is the one that was trained last.
        transforms: See :func:`.export_for_inference`.
        input_names: See :func:`.export_for_inference`.
        output_names: See :func:`.export_for_inference`.

    Raises:
        ValueError: There is no batch and the format needs one, or an argument does not fit the model.

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
    # What is undone is undone in reverse, as the engine does at events that end something.
    algorithms = state.algorithms if event.is_before_event else list(reversed(state.algorithms))
    for algorithm in algorithms:
        if bind(algorithm, "match")(event, state, logger):
            bind(algorithm, "apply")(event, state, logger)
