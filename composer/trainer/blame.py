"""Rank the rows of training steps by per-sample loss and gradient norm, to find the data behind a loss spike.

    z_i = (x_i - median(x)) / (1.4826 MAD(x)),        x = log loss, log gradient norm, statistics of the inputs

Median and median absolute deviation (MAD) are used instead of mean and standard deviation, which a bad row would raise
so far that it hides itself. Scores above 3.5 stand out: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import dist
from composer._text import plural
from composer.trainer.replay.replay import Replay, not_reached
from composer.trainer.row_contents import RowContents, describe_rows
from composer.trainer.step_samples import SampleRecorder, StepSamples, record_next_steps

if TYPE_CHECKING:
    from composer.trainer.trainer import Trainer

__all__ = [
    "THRESHOLD",
    "Blame",
    "BlamedRow",
    "BlamedStep",
    "blame",
    "blame_next_steps",
    "blame_replay",
    "rank_rows",
    "robust_z",
]

THRESHOLD = 3.5
"""Score above which a row stands out from the others."""

# Input statistics vary naturally between rows: only those far outside of the others count as the cause.
_INPUT_THRESHOLD = 7.0
# A difference of losses or norms by one percent is no outlier, however similar the other rows are.
_MIN_DEVIATION = 0.01
_SMALLEST = 1e-12
# Number of steps that the report lists one by one.
_MAX_STEPS = 6
# Share of the loss of a step that is worth telling, whatever the distribution.
_MIN_SHARE = 0.3


@dataclass(frozen=True)
class BlamedRow:
    """A row of a training step, and how far it is from the other rows.

    Attributes:
        step: Number of the step.
        rank: The rank that trained it.
        row: Its position in the batch of that rank, from 0.
        index: Its index in the dataset; None if unknown.
        loss: Its loss.
        gradient_norm: L2 norm of the gradient of that loss; None if not measured.
        weight: Weight of the loss in that of the step.
        share: Share of the loss of the step, from 0 to 1; 0 if losses are negative or not finite.
        loss_z: Robust z-score of the log loss.
        gradient_z: Robust z-score of the log gradient norm; 0 if not measured, or not finite because of another row.
        input_z: Largest robust z-score of its input statistics: log magnitude and log standard deviation.
        is_constant: Whether a tensor of it has a single value, unlike in other rows.
        contents: Its tensors.
    """

    step: int
    rank: int
    row: int
    index: int | None
    loss: float
    gradient_norm: float | None
    weight: float
    share: float
    loss_z: float
    gradient_z: float
    input_z: float
    is_constant: bool
    contents: RowContents

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are finite; not the latter if the NaN of another row spread to it."""
        return math.isfinite(self.loss) and self.gradient_z < math.inf

    @property
    def score(self) -> float:
        """The largest z-score, by which rows are ranked. Inputs count if they are far outside of the others."""
        if self.contents.num_non_finite or not self.is_finite:
            return math.inf
        from_input = self.input_z if self.input_z >= _INPUT_THRESHOLD else 0.0
        return max(self.loss_z, self.gradient_z, from_input, _INPUT_THRESHOLD if self.is_constant else 0.0)

    @property
    def why(self) -> tuple[str, ...]:
        """What stands out, in words; empty if nothing does."""
        found: list[str] = []
        if self.contents.num_non_finite:
            found.append(f"The data contains {plural(self.contents.num_non_finite, 'NaN or infinite value')}.")
        if not self.is_finite:
            found.append("The loss or its gradient is not finite.")
        named = (("loss", self.loss_z), ("gradient norm", self.gradient_z))
        over = [(name, z) for name, z in named if THRESHOLD < z < math.inf]
        found += [f"The {name} is {z:.1f} deviations above the median." for name, z in over]
        if self.share >= _MIN_SHARE:
            found.append(f"It makes up {self.share:.0%} of the loss of the step.")
        if _INPUT_THRESHOLD <= self.input_z < math.inf and not self.contents.num_non_finite:
            found.append(f"The input values are {self.input_z:.1f} deviations larger than in other rows.")
        if self.is_constant:
            found.append(f"{', '.join(self.contents.constant)}: all values are equal, unlike in other rows.")
        return tuple(found)

    @property
    def stands_out(self) -> bool:
        """Whether the row is far from the other rows."""
        return bool(self.why)


@dataclass(frozen=True)
class BlamedStep:
    """How the rows of a step were measured.

    Attributes:
        step: Number of the step.
        loss: Loss of the step, averaged over the ranks.
        num_rows: Number of rows on all ranks.
        method: How losses were computed, see :class:`.PerSample`.
        notes: What a reader must know: why rows were not measured in the context of the step, or have no index.
    """

    step: int
    loss: float
    num_rows: int
    method: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Blame:
    """The rows of training steps, the most suspicious first.

    Attributes:
        rows: The rows of all steps and ranks, by falling score.
        steps: The steps.

    >>> print(Blame((), (BlamedStep(3, 0.5, 0, "sliced"),)))
    Step 3: loss 0.5, 0 rows.
    No row stands out from the others.
    """

    rows: tuple[BlamedRow, ...]
    steps: tuple[BlamedStep, ...]

    @property
    def outliers(self) -> tuple[BlamedRow, ...]:
        """The rows that stand out."""
        return tuple(row for row in self.rows if row.stands_out)

    def text(self, top: int = 10) -> str:
        """Return a report.

        Args:
            top: Number of rows to show.
        """
        lines = [f"Step {one.step}: loss {one.loss:.6g}, {plural(one.num_rows, 'row')}." for one in self.steps]
        if len(lines) > _MAX_STEPS:
            losses, num_rows = [one.loss for one in self.steps], sum(one.num_rows for one in self.steps)
            first, last, low, high = self.steps[0].step, self.steps[-1].step, min(losses), max(losses)
            lines = [f"Steps {first} to {last}: losses from {low:.6g} to {high:.6g}, {num_rows} rows."]
        # The same for most steps of a range.
        lines += dict.fromkeys(note for step in self.steps for note in step.notes)
        if not self.outliers:
            lines.append("No row stands out from the others.")
        for number, row in enumerate(self.rows[:top], start=1):
            place = f"row {row.row} of rank {row.rank}" if dist.get_world_size() > 1 or row.rank else f"row {row.row}"
            index = "" if row.index is None else f", dataset index {row.index}"
            norm = (
                "" if row.gradient_norm is None else f", gradient norm {row.gradient_norm:.4g} (z {row.gradient_z:.1f})"
            )
            lines.append(f"{number}. step {row.step}, {place}{index}: loss {row.loss:.4g} (z {row.loss_z:.1f}){norm}")
            lines += [f"   {reason}" for reason in row.why]
            lines += [f"   {line}" for line in row.contents.lines()]
        return "\n".join(lines)

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """Return the result in JSON types; numbers that are not finite as "NaN", "Infinity" and "-Infinity".

        Args:
            top: Number of rows; None returns all.
        """
        steps = [asdict(step) for step in self.steps]
        rows = [{**asdict(row), "score": row.score, "why": row.why} for row in self.rows[:top]]
        return _plain({"steps": steps, "rows": rows})

    def __str__(self) -> str:
        """Return the report with ten rows."""
        return self.text()


def robust_z(values: Sequence[float] | Tensor, min_deviation: float = 0.0) -> Tensor:
    """Return robust z-scores, (N,): distances from the median in units of 1.4826 MAD, the deviation of a normal law.

    Args:
        values: N values. Those that are not finite get an infinite score, and are left out of the statistics.
        min_deviation: Smallest deviation to divide by, so that tiny differences among equal values are no outliers.

    >>> robust_z([1.0, 2.0, 3.0, 100.0], 0.1)
    tensor([-1.0118, -0.3373,  0.3373, 65.7628], dtype=torch.float64)
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


def blame_next_steps(trainer: Trainer, num_steps: int = 1) -> Blame:
    """Train the next steps, and rank their rows; all ranks must call this, and have the same result.

    The last step ends before its update, see :func:`.record_next_steps`: with one step, the run is left unchanged.

    Args:
        trainer: A trainer that would train these steps in its next ``fit``.
        num_steps: Number of steps.

    Raises:
        RuntimeError: Training ended before.
        ValueError: ``num_steps`` is not positive; or as in :meth:`.Trainer.fit`.

    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> x = torch.randn(8, 2)
    >>> x[5] *= 1000
    >>> data = torch.utils.data.TensorDataset(x, torch.tensor([0, 1] * 4))
    >>> trainer = Trainer(
    ...     model=model,
    ...     train_dataloader=DataLoader(data, batch_size=8),
    ...     max_duration="1ep",
    ...     progress_bar=False,
    ... )
    >>> blame_next_steps(trainer).rows[0].index
    5
    """
    return _ranked(trainer.state.model, record_next_steps(trainer, num_steps))


def blame(trainer: Trainer, first: int, last: int, source: str | None, arguments: dict[str, Any]) -> Blame:
    """Replay steps of a run up to the last, and rank their rows; see :meth:`.Trainer.blame`.

    Args:
        trainer: Made with the arguments of the run.
        first: Number of the first step.
        last: Number of the last step.
        source: Path or URI of the run; None for the folder that the trainer saves to.
        arguments: Arguments of ``fit``, as in the run.

    Raises:
        ValueError: The steps are not part of the run, or cannot be had again exactly.
    """
    run = trainer._run  # pyright: ignore[reportPrivateUsage]
    replay = Replay(trainer, run, first, source)
    replay.load()
    found = blame_replay(replay, trainer.fit, last, **arguments)
    if found is None:
        raise ValueError(not_reached(last, run))
    return found


def blame_replay(
    replay: Replay, fit: Callable[..., None], last: int, steps: list[StepSamples] | None = None, **arguments: Any
) -> Blame | None:
    """Train a loaded replay up to a step, and rank the rows of its steps; None if training ends before.

    Args:
        replay: The replay of the first step, loaded.
        fit: The trainer's ``fit``.
        last: Number of the last step.
        steps: Receives the recorded steps, for a program that calls ``fit`` several times.
        **arguments: Arguments of ``fit``, as in the run.

    Raises:
        ValueError: The last step is before the first.
    """
    if last < replay.step:
        raise ValueError(f"The last step must not be before the first, {replay.step}; got {last}.")
    recorder = SampleRecorder(replay.run, replay.step, last, steps)
    try:
        replay.train_with(recorder, fit, **arguments)
    finally:
        recorder.release()
    if not recorder.steps or recorder.steps[-1].step < last:
        return None
    return _ranked(replay.run.state.model, recorder.steps)


def _ranked(model: Any, steps: Sequence[StepSamples]) -> Blame:
    """Gather the rows of all ranks, and rank them."""
    tokenizer = getattr(model, "tokenizer", None)
    found: list[list[tuple[StepSamples, list[RowContents]]]] = []
    for step in steps:
        contents = [] if step.batch is None else describe_rows(step.batch, tokenizer)
        step.batch = None  # each rank describes its own rows; what is gathered is small
        found.append([one for one in dist.all_gather_object((step, contents)) if one[0].per_sample is not None])
    return rank_rows(found)


def rank_rows(steps: Sequence[Sequence[tuple[StepSamples, list[RowContents]]]]) -> Blame:
    """Rank the rows of training steps.

    A row is compared with those of all steps. If the median of its step is higher by more than a deviation, it is
    compared with that: after a step that damaged the weights, all rows have large losses.

    Args:
        steps: For each step the samples of each rank, and what their rows contain.
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
                *scores[number],
                is_rare[number],
                content,
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


def _plain(value: Any) -> Any:
    """Return a value in strict JSON types."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
