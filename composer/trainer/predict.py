"""Running a model over data to get its outputs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from composer import trees
from composer.core.data import DataSpec
from composer.core.event import Event
from composer.trainer.passes import count_batch, one_pass
from composer.trainer.run import Run

__all__ = ["predict"]


def predict(run: Run, spec: DataSpec, subset_num_batches: int = -1, *, return_outputs: bool = True) -> list[Any]:
    """Return the model's outputs, one entry for each batch, on the CPU.

    Args:
        run: The run.
        spec: The data.
        subset_num_batches: Number of batches; -1 is all.
        return_outputs: Whether to keep the outputs; callbacks see them either way.
    """
    state, fire = run.state, run.engine.run_event
    outputs: list[Any] = []
    with one_pass(run, state.predict_phase, spec, "predict", subset_num_batches) as batches:
        fire(Event.PREDICT_START)
        for state.batch in batches:
            if spec.microbatch_transforms is not None:
                state.batch = spec.microbatch_transforms(state.batch)
            fire(Event.PREDICT_BATCH_START)
            with nullcontext() if run.autocast is None else run.autocast():
                fire(Event.PREDICT_BEFORE_FORWARD)
                state.outputs = state.model(state.batch)
                fire(Event.PREDICT_AFTER_FORWARD)
            if return_outputs:
                outputs.append(trees.map_tensors(lambda tensor: tensor.detach().cpu(), state.outputs))
            count_batch(state.predict_phase, spec.get_num_samples_in_batch(state.batch))
            fire(Event.PREDICT_BATCH_END)
        fire(Event.PREDICT_END)
    return outputs
