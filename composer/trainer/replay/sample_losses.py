"""The loss of each sample of a batch, computed from slices of the model's outputs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from composer import rng, trees
from composer.trainer.microbatch import named_losses
from composer.trainer.microbatch_weights import count
from composer.trainer.replay.record import Microbatch
from composer.trainer.run import Run

__all__ = ["SampleLosses", "sample_losses"]


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


def sample_losses(run: Run, microbatches: Sequence[Microbatch]) -> SampleLosses:
    """Return the loss of each sample: the model's loss of its slice of the outputs and the batch.

    With n_i the samples or tokens that sample i counts, the mean sum_i n_i l_i / sum_i n_i must be the loss of the
    microbatch; otherwise the loss is not a mean over samples, or a method has changed it, and the losses are unknown.

    Args:
        run: The run, after the step.
        microbatches: What the step ran.
    """
    found: list[float] = []
    with torch.no_grad(), rng.preserve_rng_state():
        for microbatch in microbatches:
            one = _of_microbatch(run, microbatch)
            if one.losses is None:
                return one
            found += one.losses
    return SampleLosses(found)


def _of_microbatch(run: Run, microbatch: Microbatch) -> SampleLosses:
    spec, model = run.state.train_phase.loader, run.state.model
    loss: Any = model.loss
    try:
        size = spec.__num_samples__(microbatch.batch)
        samples = spec.__microbatches__(microbatch.batch, 1, size)
    except Exception as error:
        return SampleLosses(None, f"the batch cannot be split into samples: {error!r}")
    if len(samples) != size:
        return SampleLosses(None, f"a batch of {size} samples is split into {len(samples)}")
    outputs = [leaf for leaf in trees.leaves(microbatch.outputs) if isinstance(leaf, Tensor)]
    if not outputs or any(leaf.ndim == 0 or leaf.shape[0] != size for leaf in outputs):
        shapes = ", ".join(str(list(leaf.shape)) for leaf in outputs)
        return SampleLosses(None, f"the outputs have no row for each of the {size} samples: their shapes are {shapes}")
    found: list[float] = []
    with contextlib.nullcontext() if run.autocast is None else run.autocast():
        for index, sample in enumerate(samples):
            rows = slice(index, index + 1)
            own = trees.map_tensors(lambda leaf, rows=rows: leaf[rows], microbatch.outputs)
            try:
                found.append(float(named_losses(loss(own, sample))[0]))
            except Exception as error:
                return SampleLosses(None, f"the loss of a single sample raises {error!r}")
    weights = [float(one) for one in count(run, samples).per_microbatch]
    found = [value if weight else math.nan for value, weight in zip(found, weights, strict=True)]
    total = sum(weights) or 1.0
    mean = sum(value * weight for value, weight in zip(found, weights, strict=True) if weight) / total
    # The dtype of the computation decides how closely two orders of the same sum agree.
    is_low = any(leaf.dtype in (torch.float16, torch.bfloat16) for leaf in outputs) or run.autocast is not None
    if math.isfinite(mean) and not math.isclose(mean, microbatch.loss, rel_tol=3e-2 if is_low else 1e-4, abs_tol=1e-6):
        return SampleLosses(
            None,
            f"the mean of the losses of the single samples, {mean:.6g}, is not the loss, {microbatch.loss:.6g}: it is "
            f"not a mean over samples, or a method changes it",
        )
    return SampleLosses(found)
