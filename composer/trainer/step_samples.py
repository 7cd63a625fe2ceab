"""Record the samples of training steps as they are trained: their rows, dataset indices, losses and gradient norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import dist, rng, trees
from composer.core.algorithm_order import Claim
from composer.core.callback import Callback
from composer.core.data_spec import DataSpec
from composer.core.epoch_iterator import EpochIterator
from composer.core.sample_indices import sample_indices
from composer.core.time import TimeUnit
from composer.core.traits import traits_of
from composer.core.types import Batch
from composer.dist.dtensor import local_tensors
from composer.trainer.microbatch_weights import count
from composer.trainer.per_sample import ForwardContext, PerSample, measure
from composer.trainer.replay.recorder import StepReplayed
from composer.trainer.run import Run
from composer.trainer.sampled_loss import SampledLoss

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.trainer.trainer import Trainer

__all__ = ["SampleRecorder", "StepSamples", "record_next_steps"]


@dataclass
class StepSamples:
    """The samples of one training step on one rank.

    Attributes:
        step: Number of the step: of steps trained before it.
        epoch: Number of the epoch.
        rank: The rank.
        loss: Loss of the batch of this rank, with the losses that algorithms add or mix.
        batch: The batch as it was loaded, on its device, before algorithms edit it; its rows are the samples.
        indices: Index of each row in the dataset; None if unknown.
        indices_reason: Why the indices are unknown.
        per_sample: Loss and gradient norm of each row.
        mixing: Names of the algorithms that mix or drop rows in the step. If there are any, the losses are those of the
            rows as loaded, without these algorithms.

    >>> StepSamples(3, 0, 0).per_sample is None
    True
    """

    step: int
    epoch: int
    rank: int
    loss: float = 0.0
    batch: Batch = None
    indices: list[int] | None = None
    indices_reason: str = ""
    per_sample: PerSample | None = None
    mixing: list[str] = field(default_factory=list[str])


def record_next_steps(trainer: Trainer, num_steps: int = 1) -> list[StepSamples]:
    """Train the next steps, and return their samples on this rank; all ranks must call this.

    The last step ends before the optimizers step: weights, buffers and random state are then as they were before it,
    and the next ``fit`` trains its batch. With ``num_steps=1``, the run is left unchanged.

    Args:
        trainer: A trainer that would train these steps in its next ``fit``.
        num_steps: Number of steps.

    Raises:
        RuntimeError: Training ended before.
        ValueError: ``num_steps`` is not positive; or as in :meth:`.Trainer.fit`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> data = DataLoader(TensorDataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])), batch_size=2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arguments = {"optimizers": optimizer, "max_duration": "1ep", "progress_bar": False}
    >>> [
    ...     step.indices
    ...     for step in record_next_steps(Trainer(model=model, train_dataloader=data, **arguments), 2)
    ... ]
    [[0, 1], [2, 3]]
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1; got {num_steps}.")
    first = trainer.state.timestamp.count(TimeUnit.BATCH)
    recorder = SampleRecorder(trainer._run, first, first + num_steps - 1)  # pyright: ignore[reportPrivateUsage]
    callbacks = trainer.state.callbacks
    callbacks.append(recorder)
    try:
        trainer.fit()
    except StepReplayed:
        recorder.restore()
        return recorder.steps
    finally:
        recorder.release()
        callbacks.remove(recorder)
    batch = trainer.state.timestamp.batch.value
    raise RuntimeError(f"Training ended after {len(recorder.steps)} of {num_steps} steps, at batch {batch}.")


class SampleRecorder(Callback):
    """Records the samples of some steps, and ends training in the last of them, before the optimizers step.

    Args:
        run: The run.
        first: Number of the first step.
        last: Number of the last step.
        steps: Steps that an earlier recorder of the same run has recorded, to continue the list.

    Attributes:
        steps: The recorded steps.
        broken: Number of the first step that began with parameters which are not finite; None if none did.

    >>> SampleRecorder(None, 3, 5).steps
    []
    """

    def __init__(self, run: Run, first: int, last: int, steps: list[StepSamples] | None = None) -> None:
        self.steps: list[StepSamples] = [] if steps is None else steps
        self._run, self._first, self._last = run, first, last
        self.broken: int | None = None
        self._is_due = self._is_last = False
        self._evaluations = 0
        self._parts: list[tuple[PerSample, float]] = []
        self._sampled: SampledLoss | None = None
        self._context: ForwardContext | None = None
        self._loaded: Batch = None
        self._release: list[Callable[[], None]] = []
        self._before: tuple[dict[str, Any], list[tuple[Tensor, Tensor]]] | None = None

    @property
    def _spec(self) -> DataSpec:
        return self._run.state.train_phase.loader

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Watch the batch as it is loaded, before algorithms edit it."""
        self.release()
        step = state.timestamp.count(TimeUnit.BATCH)
        self._is_due, self._is_last = self._first <= step <= self._last, step == self._last
        if not self._is_due:
            return
        self._keep_changing_state(state)
        spec, transforms = self._spec, self._spec.batch_transforms

        def keep(batch: Batch) -> Batch:
            iterator = state.train_phase.iterator
            if isinstance(iterator, EpochIterator) and iterator.resume_by != "indices":
                self._keep_changing_state(state)  # the next fit gets this batch without fetching it again
            batch = batch if transforms is None else transforms(batch)
            self._loaded = trees.map_tensors(torch.clone, batch)
            return batch

        spec.batch_transforms = keep
        self._release.append(lambda: setattr(spec, "batch_transforms", transforms))

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Look up the indices of the batch."""
        self.release()
        if not self._is_due:
            return
        indices, reason = sample_indices(state.train_phase)
        now = state.timestamp
        self.steps.append(
            StepSamples(
                now.count(TimeUnit.BATCH),
                now.count(TimeUnit.EPOCH),
                dist.get_global_rank(),
                batch=self._loaded,
                indices=indices,
                indices_reason=reason,
            )
        )

    def batch_start(self, state: State, logger: Logger) -> None:
        """Begin a step; end training if its parameters are not finite, so that all that follows is not."""
        self._evaluations = 0
        if self.broken is None and not _are_finite(state.model):
            self.broken = state.timestamp.count(TimeUnit.BATCH)
            if self.broken <= self._first and dist.get_world_size() == 1:  # other ranks go on
                raise StepReplayed

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Begin an evaluation of the gradients; an optimizer may need several, of which the first is measured."""
        self._evaluations += 1
        if self._evaluations == 1:
            self._parts = []

    def before_forward(self, state: State, logger: Logger) -> None:
        """Wrap the loss function."""
        self.release()
        if not self._is_due or self._evaluations != 1:
            return
        run, model = self._run, state.model
        scale = 1.0 if state.scaler is None else float(state.scaler.get_scale())  # type: ignore[attr-defined]
        self._context = ForwardContext(
            model,
            run.autocast,
            split=self._spec.split_batch,
            count=lambda parts: count(run, parts).per_microbatch,
            scale=scale,
        )
        own = vars(model).get("loss")
        self._sampled = SampledLoss(model.loss, self._spec.split_batch)  # type: ignore[arg-type]
        vars(model)["loss"] = self._sampled
        self._release.append(lambda: vars(model).pop("loss") if own is None else vars(model).update(loss=own))

    def after_forward(self, state: State, logger: Logger) -> None:
        """Listening here keeps forward and loss separate if the model is compiled."""

    def before_backward(self, state: State, logger: Logger) -> None:
        """Measure the samples of the microbatch."""
        self.release()
        if self._evaluations != 1 or self._sampled is None or self._context is None:
            return
        counted = count(self._run, [state.batch]).per_microbatch[0]
        self._parts.append((measure(self._context, state.batch, self._sampled, state.loss), float(counted)))
        self._sampled = None

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Finish the step, and end training if it is the last."""
        if self._is_due and self._evaluations == 1:
            self._finish(state)
        if self._is_last:
            raise StepReplayed

    def release(self) -> None:
        """Remove the wrappers."""
        while self._release:
            self._release.pop()()

    def restore(self) -> None:
        """Restore random state and buffers to those before the last step."""
        if self._before is None:
            return
        state, buffers = self._before
        rng.set_local_rng_state(state)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)

    def _keep_changing_state(self, state: State) -> None:
        """Keep what the last step changes before it ends: random state and buffers."""
        if self._is_last:
            self._before = rng.get_local_rng_state(), [(one, one.clone()) for one in state.model.buffers()]

    def _finish(self, state: State) -> None:
        step = self.steps[-1]
        step.loss = float(state.total_loss_dict["loss/train/total"])
        if self._run.uneven_inputs is not None and self._run.uneven_inputs.is_idle:
            step.batch = None  # a dummy batch of a rank without data
            return
        step.per_sample = _joined(self._parts)
        rows = self._spec.__num_samples__(step.batch)
        step.mixing = [type(each).__name__ for each in state.algorithms if Claim.LOSS_MIX in traits_of(each).may_claim]
        if len(step.per_sample.losses) != rows and not step.mixing:
            step.mixing = [type(each).__name__ for each in state.algorithms if traits_of(each).changes_shapes]
            step.mixing = step.mixing or ["a method or transform that changes the number of samples"]
        if step.mixing:
            step.per_sample = self._measure_loaded(state, step.batch, rows)

    def _measure_loaded(self, state: State, batch: Batch, rows: int) -> PerSample:
        """Measure the rows as they were loaded, in microbatches as in the step."""
        run, model = self._run, state.model
        assert self._context is not None
        parts: list[tuple[PerSample, float]] = []
        with self._context.restored():
            for part in self._spec.__microbatches__(batch, state.microbatch_size, rows):
                transforms = self._spec.microbatch_transforms
                part = part if transforms is None else transforms(part)
                sampled = SampledLoss(model.loss, self._spec.split_batch)  # type: ignore[arg-type]
                context = ForwardContext(
                    model,
                    run.autocast,
                    split=self._spec.split_batch,
                    count=self._context.count,
                    scale=self._context.scale,
                )
                loss = sampled(model(part), part)
                found = measure(context, part, sampled, loss)
                parts.append((found, float(count(run, [part]).per_microbatch[0])))
        return _joined(parts)


def _are_finite(model: torch.nn.Module) -> bool:
    """Return whether all parameters are finite, on this rank."""
    found = [p.isfinite().all() for p in local_tensors([p.detach() for p in model.parameters()])]
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())


def _joined(parts: list[tuple[PerSample, float]]) -> PerSample:
    """Return the samples of all microbatches as those of one batch, weighted by the counts of the microbatches."""
    total = sum(counted for _, counted in parts) or 1.0
    found = [one for one, _ in parts]
    order = ("separate", "masked", "sliced")  # the least exact one tells
    least = min(found, key=lambda one: order.index(one.method))
    norms = [one.gradient_norms for one in found if one.gradient_norms is not None]
    return PerSample(
        torch.cat([one.losses for one in found]),
        torch.cat(norms) if len(norms) == len(found) else None,
        torch.cat([one.weights * (counted / total) for one, counted in parts]),
        least.method,
        least.reason,
        all(one.is_mean for one in found),
    )
