"""Running a model over data to get its outputs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from composer import dist, trees
from composer.core.data_spec import DataSpec
from composer.core.event import Event
from composer.parallel.buffer_sync import sync_buffers
from composer.trainer.evaluation_pass import evaluation_pass
from composer.trainer.outputs import free_outputs, own_outputs
from composer.trainer.run import Run

__all__ = ["predict"]

# Outputs of so many batches travel together.
_AT_ONCE = 64


def predict(run: Run, spec: DataSpec, subset_num_batches: int = -1, *, return_outputs: bool = True) -> list[Any]:
    """Return the model's outputs, one entry for each batch, on the CPU.

    Several processes predict the batches of a ``DataLoader`` in turn; each returns the outputs of all, in the order of
    the batches. Of other data each process predicts its own, and the outputs follow each other as the steps do, in each
    step by rank.

    Args:
        run: The run.
        spec: The data.
        subset_num_batches: Number of batches; -1 is all.
        return_outputs: Whether to keep the outputs; callbacks see them either way.
    """
    state, fire = run.state, run.engine.run_event
    outputs: list[list[Any]] = []
    with evaluation_pass(run, state.predict_phase, spec, "predict", subset_num_batches) as batches:
        fire(Event.PREDICT_START)
        sync_buffers(state.model)
        for state.batch in batches:
            free_outputs(state)  # or the last ones would lie in memory beside the new ones
            if spec.microbatch_transforms is not None:
                state.batch = spec.microbatch_transforms(state.batch)
            fire(Event.PREDICT_BATCH_START)
            with nullcontext() if run.autocast is None else run.autocast():
                fire(Event.PREDICT_BEFORE_FORWARD)
                state.outputs = state.model(state.batch)
                own_outputs(run)
                fire(Event.PREDICT_AFTER_FORWARD)
            if return_outputs:
                # In a list, or nothing where the batch only keeps step with other processes.
                done = [trees.map_tensors(lambda tensor: tensor.detach().cpu(), state.outputs)]
                outputs.append([] if batches.is_idle else done)
            batches.count()
            fire(Event.PREDICT_BATCH_END)
        fire(Event.PREDICT_END)
    if run.step_sync is not None:
        outputs = _of_all(run, outputs)
    return [output for one in outputs for output in one]


def _of_all(run: Run, outputs: list[list[Any]]) -> list[list[Any]]:
    """The outputs of all processes, step by step."""
    share, gathered = run.state.data_shard, list[list[Any]]()
    for first in range(0, len(outputs), _AT_ONCE):
        parts = dict(dist.all_gather_object((share.rank, outputs[first : first + _AT_ONCE])))
        steps = zip(*(parts[rank] for rank in range(share.size)), strict=True)
        gathered += [part for step in steps for part in step]
    return gathered
