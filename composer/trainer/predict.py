"""The prediction loop of :meth:`.Trainer.predict`: run the model over data and gather its outputs from all ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from composer import dist, trees
from composer.core.data_spec import DataSpec
from composer.core.event import Event
from composer.parallel.buffer_sync import sync_buffers
from composer.trainer.evaluation_pass import evaluation_pass
from composer.trainer.outputs import clone_reused_outputs, free_outputs
from composer.trainer.run import Run

__all__ = ["predict"]

# Number of batches whose outputs are all-gathered together.
_BATCHES_PER_GATHER = 64


def predict(run: Run, spec: DataSpec, subset_num_batches: int = -1, *, return_outputs: bool = True) -> list[Any]:
    """Return the model's outputs on the CPU, one entry per batch.

    With multiple ranks, the batches of a ``DataLoader`` are sharded; every rank returns all outputs, in the order of
    the batches. With other data, each rank predicts what it iterates over, and the outputs are ordered by step, then by
    rank.

    Args:
        run: The run.
        spec: The data.
        subset_num_batches: Number of batches; -1 uses all.
        return_outputs: Whether to keep and return the outputs; callbacks see them either way.
    """
    state, fire = run.state, run.engine.run_event
    outputs: list[list[Any]] = []
    with evaluation_pass(run, state.predict_phase, spec, "predict", subset_num_batches) as batches:
        fire(Event.PREDICT_START)
        sync_buffers(state.model)
        for state.batch in batches:
            free_outputs(state)  # before the new ones are allocated
            if spec.microbatch_transforms is not None:
                state.batch = spec.microbatch_transforms(state.batch)
            fire(Event.PREDICT_BATCH_START)
            with nullcontext() if run.autocast is None else run.autocast():
                fire(Event.PREDICT_BEFORE_FORWARD)
                state.outputs = state.model(state.batch)
                clone_reused_outputs(run)
                fire(Event.PREDICT_AFTER_FORWARD)
            if return_outputs:
                # A list of one entry, or empty for the dummy batch of a rank whose data has ended.
                done = [trees.map_tensors(lambda tensor: tensor.detach().cpu(), state.outputs)]
                outputs.append([] if batches.is_idle else done)
            batches.count()
            fire(Event.PREDICT_BATCH_END)
        fire(Event.PREDICT_END)
    if run.step_sync is not None:
        outputs = _gather_outputs(run, outputs)
    return [output for one in outputs for output in one]


def _gather_outputs(run: Run, outputs: list[list[Any]]) -> list[list[Any]]:
    """All-gather the outputs of all ranks, ordered by step, then by rank."""
    shard, all_outputs = run.state.data_shard, list[list[Any]]()
    for first in range(0, len(outputs), _BATCHES_PER_GATHER):
        per_rank = dict(dist.all_gather_object((shard.rank, outputs[first : first + _BATCHES_PER_GATHER])))
        steps = zip(*(per_rank[rank] for rank in range(shard.size)), strict=True)
        all_outputs += [batch_outputs for step in steps for batch_outputs in step]
    return all_outputs
