"""ExportForInferenceCallback: export the model to TorchScript, ONNX or torch.export when training ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.callback import Callback
from composer.core.name_placeholders import check_template
from composer.dist.dtensor import is_dtensor
from composer.export import ExportFormat, Transform, export_for_inference, export_of_run
from composer.storage.atomic_upload import check_destination

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ExportForInferenceCallback", "export_for_inference"]


class ExportForInferenceCallback(Callback):
    """Exports the model at the end of training; see :func:`.export_for_inference`.

    The model is exported as it is evaluated: with layers that algorithms replaced, and with averaged weights if EMA
    is used. A logger that stores files receives the file; otherwise it is written to ``save_path``, a path or URI. An
    existing file is replaced.

    Args:
        save_format: ``"torchscript"``, ``"onnx"`` or ``"torch_export"``.
        save_path: Where to export; may contain ``{run_name}``, ``{epoch}``, ``{batch}``, ...
        save_object_store: An object with ``upload_object(object_name, filename)`` that receives the file instead.
        sample_input: A batch to call the model with; None is the last training batch.
        transforms: Functions that return the module to export.
        input_names: A name for each tensor of the batch.
        output_names: A name for each tensor that the model returns.

    Raises:
        ValueError: The format or a placeholder of the path is unknown; when training starts, also if parameters are
            sharded.

    >>> ExportForInferenceCallback("onnx", "{run_name}/model.onnx").save_format
    <ExportFormat.ONNX: 'onnx'>
    """

    writes_output = True

    def __init__(
        self,
        save_format: str | ExportFormat,
        save_path: str | Path,
        save_object_store: Any = None,
        sample_input: Any = None,
        transforms: Transform | Sequence[Transform] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        self.save_format = ExportFormat(save_format)
        self.save_path = check_template("save_path", save_path, timed=True)
        self.save_object_store = save_object_store
        self.sample_input = sample_input
        self.transforms = transforms
        self.input_names = input_names
        self.output_names = output_names

    def init(self, state: State, logger: Logger) -> None:
        """Check that the destination is reachable before training rather than after it."""
        to_logger = self.save_object_store is None and logger.has_file_upload_destination()
        if dist.get_global_rank() == 0 and not to_logger:
            check_destination(self.save_path, self.save_object_store)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Raise if parameters are sharded, before training rather than after it."""
        if any(is_dtensor(tensor) for tensor in state.model.state_dict().values()):
            raise ValueError(
                "ExportForInferenceCallback requires unsharded parameters on each rank, but the model is sharded. "
                "Remove the callback, save a checkpoint, and export from that: export_for_inference(new_model, ..., "
                "load_path=...)."
            )

    def fit_end(self, state: State, logger: Logger) -> None:
        """Export the model."""
        export_of_run(
            state,
            logger,
            self.save_format,
            self.save_path,
            save_object_store=self.save_object_store,
            sample_input=self.sample_input,
            transforms=self.transforms,
            input_names=self.input_names,
            output_names=self.output_names,
        )
