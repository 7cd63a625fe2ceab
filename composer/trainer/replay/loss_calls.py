"""The loss of each sample of a replayed step, computed after it from what its loss function was called with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from composer import rng, trees
from composer.trainer.microbatch_weights import count
from composer.trainer.run import Run
from composer.trainer.sampled_loss import SampledLoss, split_loss

__all__ = ["LossCalls", "SampleLosses"]


class SampleLosses(NamedTuple):
    """Losses of the samples of a batch, or why they are unknown.

    Attributes:
        losses: Loss of each sample, NaN for a sample that does not count; None if unknown.
        reason: Why they are unknown; empty if they are known.

    >>> SampleLosses([0.5]).reason
    ''
    """

    losses: list[float] | None
    reason: str = ""


class LossCalls:
    """Keeps the outputs and the batch of each call of a model's loss function, with targets that algorithms edit.

    The loss function is only called as in the run; that of single samples after the step.

    Args:
        run: The run.

    >>> LossCalls(None).sample_losses()
    SampleLosses(losses=[], reason='')
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls: list[tuple[Any, Any]] = []
        self._microbatches: list[tuple[Any, Any, float] | None] = []
        self._restore: Callable[[], None] | None = None

    def begin(self) -> None:
        """Watch the loss function in a step; forget what an earlier attempt of the step called."""
        self.end()
        self._calls, self._microbatches = [], []
        if self._run.forward_and_loss is not None:
            return  # compiled with the forward pass, which is to run unchanged
        model, own = self._run.state.model, vars(self._run.state.model).get("loss")
        loss: Any = model.loss

        def watched(outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._calls.append((_copied(outputs), _copied(batch)))
            return loss(outputs, batch, *args, **kwargs)

        vars(model)["loss"] = watched
        self._restore = lambda: vars(model).pop("loss") if own is None else vars(model).update(loss=own)

    def end(self) -> None:
        """Stop watching."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def add_microbatch(self, outputs: Any, batch: Any, loss: float) -> None:
        """Note that a microbatch is complete.

        Args:
            outputs: Copies of its outputs.
            batch: A copy of the microbatch.
            loss: Its loss.
        """
        called, self._calls = self._calls or [(outputs, batch)], []
        self._microbatches.append((*called[0], loss) if len(called) == 1 else None)

    def sample_losses(self) -> SampleLosses:
        """Return the loss of each sample in the step, after it."""
        found: list[float] = []
        with torch.no_grad(), rng.preserve_rng_state():
            for one in self._microbatches:
                if one is None:
                    return SampleLosses(None, "a method combines several losses")
                part = self._of_microbatch(*one)
                if part.losses is None:
                    return part
                found += part.losses
        return SampleLosses(found)

    def _of_microbatch(self, outputs: Any, batch: Any, expected: float) -> SampleLosses:
        run, model = self._run, self._run.state.model
        loss: Any = model.loss
        sampled = SampledLoss(loss, run.state.train_phase.loader.split_batch)
        with contextlib.nullcontext() if run.autocast is None else run.autocast():
            result = sampled(outputs, batch)
        is_low = run.autocast is not None or any(
            leaf.dtype in (torch.float16, torch.bfloat16) for leaf in trees.leaves(outputs) if hasattr(leaf, "dtype")
        )
        # The dtype of the computation decides how closely two orders of the same sum agree.
        total = torch.tensor(expected, dtype=torch.bfloat16 if is_low else torch.float32)
        found = split_loss(model, sampled, result, total, lambda parts: count(run, parts).per_microbatch)
        if found.weights is None:
            return SampleLosses(None, found.problem)
        pairs: Sequence[tuple[Any, float]] = list(zip(found.losses, found.weights.tolist(), strict=True))
        return SampleLosses([float(one) if weight else math.nan for one, weight in pairs])


def _copied(tree: Any) -> Any:
    return trees.map_tensors(lambda tensor: tensor.detach().clone(), tree)
