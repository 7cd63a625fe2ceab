"""The loss of each sample of a batch, from slices of the model's outputs, checked against the loss of the batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer import rng, trees
from composer.core.microbatches import split
from composer.core.types import Batch
from composer.core.user_counts import count_targets
from composer.trainer.microbatch import named_losses
from composer.warnings import ComposerWarning

__all__ = ["Counts", "SampledLoss", "SplitLoss", "split_loss", "weights_for"]

Counts = Callable[[Sequence[Batch]], Sequence[Any]]
"""Returns the number of samples or targets that the loss of each of several batches averages over."""


@dataclass(frozen=True)
class SplitLoss:
    """A loss as a weighted sum of the losses of the samples, or why it is none.

    Attributes:
        losses: Loss of each sample, scalars with their graphs; empty if unknown.
        weights: Weight of each sample, (N,), float64; None if the loss is not such a sum.
        problem: Why losses or weights are unknown; empty if they are known.

    >>> SplitLoss([], None, "the loss function of the model was not called").weights is None
    True
    """

    losses: list[Tensor]
    weights: Tensor | None
    problem: str = ""


@dataclass
class _Call:
    """A call of the loss function: its result, and the loss of each sample, or why there is none."""

    result: Any
    losses: list[Tensor]
    parts: Sequence[Batch]
    problem: str = ""


class SampledLoss:
    """Wraps the loss function of a model: also computes the loss of each sample, from slices of outputs and batch.

    Put it in place of ``model.loss`` in a training step; then :func:`measure` has the losses in the very conditions
    of that step, including targets that algorithms edit and losses that they mix.

    Args:
        loss: ``(outputs, batch) -> loss``.
        split_batch: ``(batch, size) -> microbatches``.

    >>> sampled = SampledLoss(lambda outputs, batch: (outputs - batch[1]).square().mean())
    >>> sampled(torch.zeros(2, 1), (torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])))
    tensor(5.)
    >>> sampled.calls[0].losses
    [tensor(1.), tensor(9.)]
    """

    def __init__(self, loss: Callable[..., Any], split_batch: Callable[[Batch, int], Sequence[Batch]] = split) -> None:
        self.loss, self._split = loss, split_batch
        self.calls: list[_Call] = []

    def __call__(self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of the batch.

        Args:
            outputs: The outputs of the model.
            batch: The batch.
            *args: Passed on.
            **kwargs: Passed on.
        """
        call = _Call(None, [], [])
        try:
            # The slices first, so that what the model keeps of a call is that of the full batch.
            with rng.preserve_rng_state(), warnings.catch_warnings():
                warnings.simplefilter("ignore", ComposerWarning)
                call.parts, slices = self._split(batch, 1), split(outputs, 1)
                if len(slices) != len(call.parts):
                    call.problem = f"the outputs have {len(slices)} rows, the batch {len(call.parts)} samples"
                else:
                    pairs = zip(slices, call.parts, strict=True)
                    call.losses = [named_losses(self.loss(o, part, *args, **kwargs))[0] for o, part in pairs]
        except Exception as error:  # whatever a user's function raises for a single row
            call.problem = f"the loss of a single row raises {type(error).__name__}: {error}"
        if not call.problem and _is_computed_forward(outputs, call.losses):
            call.problem = "the model computes the loss of the full batch in its forward pass"
        call.result = self.loss(outputs, batch, *args, **kwargs)
        self.calls.append(call)
        return call.result


def split_loss(model: Any, sampled: SampledLoss, loss: Any, total: Tensor, count: Counts | None = None) -> SplitLoss:
    """Return the losses of the samples, and the weights with which they sum to the loss of the batch.

    Args:
        model: The model, which may count targets.
        sampled: Has recorded the calls of the loss function.
        loss: The loss, after algorithms changed it.
        total: Its value, a scalar; the tolerance of the check is that of its dtype.
        count: Number of samples or targets of each part of a batch; None tries both.

    >>> sampled = SampledLoss(lambda outputs, batch: outputs.mean())
    >>> loss = sampled(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    >>> split_loss(torch.nn.Linear(1, 1), sampled, loss, loss).weights
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    losses, problem = _combined(sampled, loss, total)
    if problem:
        return SplitLoss([], None, problem)
    values = torch.stack([one.detach() for one in losses]).cpu().double()
    weights = weights_for(model, sampled.calls[0].parts, values, total, count)
    if weights is None:
        problem = (
            f"the loss of the batch, {total.item():.6g}, is neither the mean ({values.mean().item():.6g}) nor the "
            f"sum of the losses of its samples, as with losses that compare samples with each other"
        )
    return SplitLoss(losses, weights, problem)


def _is_computed_forward(outputs: Any, losses: Sequence[Tensor]) -> bool:
    """Return whether all slices have the same loss, because the outputs contain that of the full batch."""
    scalars = (leaf for leaf in trees.leaves(outputs) if isinstance(leaf, Tensor) and leaf.ndim == 0)
    if len(losses) < 2 or not any(leaf.requires_grad for leaf in scalars):
        return False
    values = torch.stack([loss.detach() for loss in losses])
    return bool(((values == values[0]) | (values.isnan() & values[0].isnan())).all())


def _combined(sampled: SampledLoss, loss: Any, total: Tensor) -> tuple[list[Tensor], str]:
    """Return the loss of each sample, combined over the calls of the loss function; or what prevents it.

    Algorithms may add up several losses, as MixUp: L = sum_k c_k L_k, with c_k = dL / dL_k.
    """
    calls = sampled.calls
    problem = next((call.problem for call in calls if call.problem), "")
    if problem or not calls:
        return [], problem or "the loss function of the model was not called"
    if calls[-1].result is loss:
        return calls[-1].losses, ""
    results = [call.result for call in calls]
    same_size = len({len(call.losses) for call in calls}) == 1
    if not same_size or not all(isinstance(one, Tensor) and one.ndim == 0 and one.requires_grad for one in results):
        return [], "an algorithm replaced the loss"
    found = torch.autograd.grad(total, results, retain_graph=True, allow_unused=True)
    factors = [torch.zeros_like(total) if factor is None else factor for factor in found]
    columns = zip(*(call.losses for call in calls), strict=True)
    return [torch.stack([f * one for f, one in zip(factors, row, strict=True)]).sum() for row in columns], ""


def _candidates(model: Any, parts: Sequence[Batch], count: Counts | None) -> list[Tensor]:
    """Return the counts by which the losses of the samples may be weighted, (N,) each, the most likely first."""
    found: list[Sequence[Any]] = []
    if count is not None:
        # A count that does not work for single samples is no candidate; what follows is checked against the loss.
        with contextlib.suppress(Exception):
            found.append(count(parts))
    count_of_model = getattr(model, "__count_targets__", lambda part: None)
    counts_of_model = [count_of_model(part) for part in parts]
    found.append([1] * len(parts))
    for counts in (counts_of_model, [count_targets(part) for part in parts]):
        if all(count is not None for count in counts):
            found.append(counts)
    return [torch.tensor([float(count) for count in counts], dtype=torch.float64) for counts in found]


def _shares(counts: Tensor) -> Tensor:
    total = counts.sum()
    return counts / total if total > 0 else torch.full_like(counts, 1 / max(len(counts), 1))


def weights_for(
    model: Any, parts: Sequence[Batch], values: Tensor, total: Tensor | None, count: Counts | None = None
) -> Tensor | None:
    """Return the weights with which losses sum to the loss of the batch, (N,), or None.

    Args:
        model: The model, which may count targets.
        parts: The samples, as batches of one.
        values: Their losses, (N,).
        total: The loss of the batch; None returns the most likely weights, without a check.
        count: Number of samples or targets of each part; None tries both.

    >>> weights_for(torch.nn.Linear(1, 1), [0, 1], torch.tensor([1.0, 3.0]), torch.tensor(4.0))
    tensor([1., 1.])
    """
    candidates = _candidates(model, parts, count)
    if total is None:
        return _shares(candidates[0])
    tried = [*map(_shares, candidates), torch.ones_like(values)]
    return next((weights for weights in tried if _sums_to(values, weights, total)), None)


def _sums_to(values: Tensor, weights: Tensor, total: Tensor) -> bool:
    """Return whether weighted losses sum to the loss of the batch, up to rounding in its dtype."""
    terms = (values * weights)[weights > 0]  # the loss of a sample without targets is 0 / 0
    expected, found = total.detach().cpu().double(), terms.sum()
    if not expected.isfinite():
        return not bool(found.isfinite())
    eps = torch.finfo(total.dtype).eps
    tolerance = eps**0.5 if eps < 1e-5 else 4 * eps
    return bool((found - expected).abs() <= tolerance * terms.abs().sum().clamp(min=1e-12))
