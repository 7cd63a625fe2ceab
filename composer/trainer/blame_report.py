"""What blame finds: the rows of training steps with losses, gradient norms and z-scores, as a report and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from composer import dist
from composer._text import plural
from composer.trainer.row_contents import RowContents

__all__ = ["INPUT_THRESHOLD", "THRESHOLD", "Blame", "BlamedRow", "BlamedStep"]

THRESHOLD = 3.5
"""Score above which a row stands out from the others."""

INPUT_THRESHOLD = 7.0
"""Score above which input statistics count: they vary naturally between rows, so only rows far outside stand out."""

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

    >>> row = BlamedRow(3, 0, 5, 17, 9.5, 2.0, 0.1, 0.9, 6.2, 1.0, 0.0, False, RowContents(()))
    >>> row.score, row.why
    (6.2, ('The loss is 6.2 deviations above the median.', 'It makes up 90% of the loss of the step.'))
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
        from_input = self.input_z if self.input_z >= INPUT_THRESHOLD else 0.0
        return max(self.loss_z, self.gradient_z, from_input, INPUT_THRESHOLD if self.is_constant else 0.0)

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
        if INPUT_THRESHOLD <= self.input_z < math.inf and not self.contents.num_non_finite:
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

    >>> BlamedStep(3, 0.5, 8, "sliced").notes
    ()
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
        broken: Number of the first step that began with NaN or infinite parameters; None if none did. Such steps are
            left out: all of their losses are NaN, whatever their rows are.

    >>> print(Blame((), (BlamedStep(3, 0.5, 0, "sliced"),)))
    Step 3: loss 0.5, 0 rows.
    No row stands out from the others.
    """

    rows: tuple[BlamedRow, ...]
    steps: tuple[BlamedStep, ...]
    broken: int | None = None

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
        if self.broken is not None:
            lines.insert(0, f"Before step {self.broken}, parameters were NaN or infinite already.")
            if not self.steps:
                lines.append(f"The rows of later steps are not the cause: blame step {self.broken - 1}, or before.")
        if not self.outliers and self.steps:
            lines.append("No row stands out from the others.")
        for number, row in enumerate(self.rows[:top], start=1):
            place = f"row {row.row} of rank {row.rank}" if dist.get_world_size() > 1 or row.rank else f"row {row.row}"
            index = "" if row.index is None else f", dataset index {row.index}"
            norm = ""
            if row.gradient_norm is not None:
                norm = f", gradient norm {row.gradient_norm:.4g} (z {row.gradient_z:.1f})"
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
        return _plain({"steps": steps, "rows": rows, "broken": self.broken})

    def __str__(self) -> str:
        """Return the report with ten rows."""
        return self.text()


def _plain(value: Any) -> Any:
    """Return a value in strict JSON types."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
