"""Rank the rows of training steps by robust z-scores of their losses and gradient norms.

    z_i = (x_i - median(x)) / (1.4826 MAD(x)),        x = log loss, log gradient norm, statistics of the inputs

Median and median absolute deviation (MAD) are used instead of mean and standard deviation, which a bad row would raise
so far that it hides itself. Scores above 3.5 stand out: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from composer.trainer.blame_report import Blame, BlamedRow, BlamedStep
from composer.trainer.row_contents import RowContents
from composer.trainer.step_samples import StepSamples

__all__ = ["rank_rows", "robust_z"]

# A difference of losses or norms by one percent is no outlier, however similar the other rows are.
_MIN_DEVIATION = 0.01
_SMALLEST = 1e-12


def robust_z(values: Sequence[float] | Tensor, min_deviation: float = 0.0) -> Tensor:
    """Return robust z-scores, (N,): distances from the median in units of 1.4826 MAD, the deviation of a normal law.

    Args:
        values: N values. Those that are not finite get an infinite score, and are left out of the statistics.
        min_deviation: Smallest deviation to divide by, so that tiny differences among equal values are no outliers.

    >>> robust_z([1.0, 2.0, 3.0, 100.0], 0.1)
    tensor([-1.0117, -0.3372,  0.3372, 65.7628], dtype=torch.float64)
    """
    values = torch.as_tensor(values, dtype=torch.float64)
    finite = values.isfinite()
    if not finite.any():
        return torch.full_like(values, math.inf)
    known = values[finite]
    median = known.quantile(0.5)
    return torch.where(finite, (values - median) / _deviation(known - median, min_deviation), math.inf)


def _deviation(residuals: Tensor, min_deviation: float) -> Tensor:
    """Return the robust deviation of residuals, which have a median of about 0."""
    return (residuals.abs().quantile(0.5) * 1.4826).clamp(min=max(min_deviation, _SMALLEST))


def rank_rows(steps: Sequence[Sequence[tuple[StepSamples, list[RowContents]]]]) -> Blame:
    """Rank the rows of training steps.

    A row is compared with those of all steps. If the median of its step is higher by more than a deviation, it is
    compared with that: after a step that damaged the weights, all rows have large losses.

    Args:
        steps: For each step the samples of each rank, and what their rows contain.

    >>> from composer.trainer.per_sample import PerSample
    >>> losses = torch.tensor([0.1, 0.2, 9.0], dtype=torch.float64)
    >>> samples = StepSamples(3, 0, 0, indices=[7, 8, 9])
    >>> samples.per_sample = PerSample(losses, losses, torch.ones(3) / 3, "sliced")
    >>> rank_rows([[(samples, [RowContents(())] * 3)]]).rows[0].index
    9
    """
    columns = [_columns(step) for step in steps]
    z_scores = zip(_step_z([one[0] for one in columns]), _step_z([one[1] for one in columns]), strict=True)
    rows: list[BlamedRow] = []
    for step, (losses, norms, weights), (loss_z, gradient_z) in zip(steps, columns, z_scores, strict=True):
        if losses.isfinite().any() and not losses.isfinite().all() and not norms.isfinite().any():
            gradient_z = torch.zeros_like(loss_z)  # 0 * NaN: the values of one row are in the graph of all
        terms = losses * weights
        total = float(terms.sum())
        shares = terms / total if total > 0 and bool((terms >= 0).all()) else torch.zeros_like(terms)
        contents = [one for _, of_rank in step for one in of_rank]
        scores = torch.stack([loss_z, gradient_z, _input_z(contents)], dim=1).tolist()
        is_rare = _rare_constants(contents)
        places = [(samples, row) for samples, of_rank in step for row in range(len(of_rank))]
        for number, ((samples, row), content) in enumerate(zip(places, contents, strict=True)):
            measured = samples.per_sample is not None and samples.per_sample.gradient_norms is not None
            blamed = BlamedRow(
                samples.step,
                samples.rank,
                row,
                _index(samples.indices, row),
                float(losses[number]),
                float(norms[number]) if measured else None,
                float(weights[number]),
                float(shares[number]),
                loss_z=scores[number][0],
                gradient_z=scores[number][1],
                input_z=scores[number][2],
                is_constant=is_rare[number],
                contents=content,
            )
            rows.append(blamed)
    return Blame(tuple(sorted(rows, key=_rank_key)), tuple(_blamed_step(step) for step in steps))


def _columns(step: Sequence[tuple[StepSamples, list[RowContents]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses, gradient norms and weights of the rows of all ranks, (N,) each; norms are 0 if not measured."""
    samples = [one.per_sample for one, _ in step if one.per_sample is not None]
    losses = torch.cat([one.losses for one in samples])
    norms = [torch.zeros_like(one.losses) if one.gradient_norms is None else one.gradient_norms for one in samples]
    # Each rank's weights sum to 1; ranks count by their rows.
    weights = torch.cat([one.weights * (len(one.losses) / len(losses)) for one in samples])
    return losses, torch.cat(norms), weights


def _index(indices: Sequence[int] | None, row: int) -> int | None:
    """Return the index of a row; custom splits may give more rows than indices."""
    return indices[row] if indices is not None and row < len(indices) else None


def _step_z(steps: Sequence[Tensor]) -> list[Tensor]:
    """Return the z-scores of the logarithms of values, (N,) for each step."""
    pooled = _logarithms(torch.cat(list(steps)))
    if not pooled.isfinite().any():
        return [robust_z(values) for values in steps]
    values = list(pooled.split([len(step) for step in steps]))
    median = pooled[pooled.isfinite()].quantile(0.5)
    medians = [one[one.isfinite()].quantile(0.5) if one.isfinite().any() else median for one in values]
    residuals = torch.cat([one - own for one, own in zip(values, medians, strict=True)])
    deviation = _deviation(residuals[residuals.isfinite()], _MIN_DEVIATION)
    centers = [median + (own - median - deviation).clamp(min=0) for own in medians]
    scores = [(one - center) / deviation for one, center in zip(values, centers, strict=True)]
    return [score.masked_fill(~one.isfinite(), math.inf) for score, one in zip(scores, values, strict=True)]


def _rank_key(row: BlamedRow) -> tuple[Any, ...]:
    """Return the sort key: invalid inputs first, as they may have made all losses of the batch NaN; then by score."""
    tie = row.loss if math.isfinite(row.loss) else math.inf
    # Huge values may spread over a batch by BatchNorm, so that all losses are invalid: then the inputs decide.
    return (row.contents.num_non_finite == 0, row.is_finite, -row.score, -row.input_z, -tie)


def _blamed_step(ranks: Sequence[tuple[StepSamples, list[RowContents]]]) -> BlamedStep:
    first = ranks[0][0]
    samples = [step.per_sample for step, _ in ranks if step.per_sample is not None]
    least = min(samples, key=lambda one: one.is_exact)
    notes = [least.reason] if least.reason else []
    if first.mixing:
        names = ", ".join(first.mixing)
        notes.append(f"The rows were measured as they were loaded, without {names}, which combines or drops rows.")
    if first.indices is None:
        notes.append(f"The indices in the dataset are unknown: {first.indices_reason}.")
    num_rows = sum(len(one.losses) for one in samples)
    loss = sum(step.loss for step, _ in ranks) / len(ranks)
    return BlamedStep(first.step, loss, num_rows, least.method, tuple(notes))


def _logarithms(values: Tensor) -> Tensor:
    """Return logarithms, in which losses and norms are closer to a normal law; values if some are negative."""
    finite = values[values.isfinite()]
    if bool((finite < 0).any()):
        return values
    return values.clamp(min=_SMALLEST).log()


def _input_z(contents: Sequence[RowContents]) -> Tensor:
    """Return the largest z-score of the input statistics of each row, (N,)."""
    columns = [list(column) for column in zip(*(one.statistics for one in contents), strict=False)]
    found = torch.zeros(len(contents), dtype=torch.float64)
    for column in columns:
        values = torch.tensor(column, dtype=torch.float64)
        found = torch.maximum(found, robust_z(_logarithms(values), 0.1).nan_to_num(nan=0.0))
    return found


def _rare_constants(contents: Sequence[RowContents]) -> list[bool]:
    """Return for each row whether a tensor of it has a single value, and hardly any other row's has."""
    most = max(1, len(contents) // 10)
    count: dict[str, int] = {}
    for one in contents:
        for name in one.constant:
            count[name] = count.get(name, 0) + 1
    return [len(contents) > 2 and any(count[name] <= most for name in one.constant) for one in contents]
