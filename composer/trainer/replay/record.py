"""The record of a replayed step: what was in it, as values, in JSON types, and as a table on the terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from composer import trees
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Microbatch", "ReplayedStep"]

# Number of rows of a table on the terminal.
_ROWS = 12


@dataclass(frozen=True)
class Microbatch:
    """One forward and backward pass of a step.

    Attributes:
        batch: The microbatch as the model got it.
        outputs: Outputs of the model, without graph.
        loss: Its loss, before it is weighted.

    >>> Microbatch(None, None, 0.5).loss
    0.5
    """

    batch: Any
    outputs: Any
    loss: float


@dataclass(frozen=True)
class ReplayedStep:
    """A step of a run, repeated.

    Attributes:
        step: Number of batches trained before it; its metrics were logged at this number.
        start: Where the replay started: the path of a checkpoint, or "seed N" for the start of the run.
        timestamp: The training time before the step.
        rank: This rank; batch, indices, microbatches and sample losses are those of this rank.
        batch: The batch on the device, after ``AFTER_DATALOADER``.
        sample_indices: Indices in the dataset of the samples of the batch, as loaded; None if unknown.
        microbatches: The forward and backward passes.
        losses: The losses of the step by name, as they are logged: averages over all ranks.
        sample_losses: Loss of each sample as it was trained, with inputs and targets that methods edit, in the order
            of the batch; NaN for a sample that does not count. None if the loss is not a mean over samples.
        gradient_norms: L2 norm of the gradient of each parameter, as the optimizers get it (after clipping).
        module_norms: The same of each module: of all parameters below it; "" is the model.
        learning_rates: The learning rate of each parameter group, by optimizer and group.
        unknown: Why ``sample_indices``, ``sample_losses`` or ``gradient_norms`` is None, by name.

    >>> print(ReplayedStep(3, "seed 17", Timestamp(), losses={"loss/train/total": 0.25}))
    Step 3, replayed from seed 17: epoch 0, batch 0, sample 0, loss 0.25
    """

    step: int
    start: str
    timestamp: Timestamp
    rank: int = 0
    batch: Any = None
    sample_indices: list[int] | None = None
    microbatches: Sequence[Microbatch] = ()
    losses: Mapping[str, float] = field(default_factory=dict[str, float])
    sample_losses: list[float] | None = None
    gradient_norms: Mapping[str, float] | None = None
    module_norms: Mapping[str, float] | None = None
    learning_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def loss(self) -> float:
        """The loss of the step, averaged over the batch of all ranks."""
        return self.losses["loss/train/total"]

    @property
    def outputs(self) -> Any:
        """Outputs of the model: of the only microbatch, or a list with those of each."""
        found = [microbatch.outputs for microbatch in self.microbatches]
        return found[0] if len(found) == 1 else found

    def to_json(self) -> dict[str, Any]:
        """Return the record in JSON types; tensors of batch and outputs are described by dtype and shape."""
        time = self.timestamp
        return {
            "step": self.step,
            "start": self.start,
            "rank": self.rank,
            "epoch": time.epoch.value,
            "batch_in_epoch": time.batch_in_epoch.value,
            "sample": time.sample.value,
            "token": time.token.value,
            "batch": _shapes(self.batch),
            "sample_indices": self.sample_indices,
            "losses": {name: _number(loss) for name, loss in self.losses.items()},
            "sample_losses": None if self.sample_losses is None else [_number(loss) for loss in self.sample_losses],
            "microbatches": [
                {"batch": _shapes(one.batch), "outputs": _shapes(one.outputs), "loss": _number(one.loss)}
                for one in self.microbatches
            ],
            "learning_rates": dict(self.learning_rates),
            "gradient_norms": _numbers(self.gradient_norms),
            "module_norms": _numbers(self.module_norms),
            "unknown": dict(self.unknown),
        }

    def __str__(self) -> str:
        """The tables of the terminal as text."""
        from rich.console import Console

        stream = io.StringIO()
        Console(file=stream, width=110, highlight=False, soft_wrap=True).print(self)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).rstrip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a line about the step, and tables of its microbatches, samples, gradients and learning rates."""
        from rich.markup import escape

        time = self.timestamp
        yield (
            f"[bold]Step {self.step}[/bold], replayed from {escape(self.start)}: epoch {time.epoch.value}, batch "
            f"{time.batch_in_epoch.value}, sample {time.sample.value}, loss {self.loss:.8g}"
        )
        others = {name: loss for name, loss in self.losses.items() if name != "loss/train/total"}
        if others:
            yield ", ".join(f"{escape(name)} {loss:.8g}" for name, loss in others.items())
        if self.learning_rates:
            rates = (f"{escape(name)} {rate:.8g}" for name, rate in self.learning_rates.items())
            yield f"learning rate: {', '.join(rates)}"
        passes = [
            [str(i), _text(one.batch), _text(one.outputs), f"{one.loss:.8g}"] for i, one in enumerate(self.microbatches)
        ]
        yield from _table(["microbatch", "batch", "outputs", "loss"], passes)
        yield from _table(["sample", "index", "loss"], self._sample_rows())
        if self.gradient_norms is not None and self.module_norms is not None:
            modules = sorted(self.module_norms.items(), key=lambda item: item[1], reverse=True)
            yield from _table(
                ["module", "gradient norm"], [[name or "(model)", f"{norm:.6g}"] for name, norm in modules]
            )
            named = sorted(self.gradient_norms.items(), key=lambda item: item[1], reverse=True)
            yield from _table(["parameter", "gradient norm"], [[name, f"{norm:.6g}"] for name, norm in named])
        for name, reason in self.unknown.items():
            yield f"{name.replace('_', ' ')}: unknown, since {escape(reason)}"

    def _sample_rows(self) -> list[list[str]]:
        """Return a row for each sample, those with the largest loss first."""
        if self.sample_losses is None and self.sample_indices is None:
            return []
        count = len((self.sample_losses if self.sample_indices is None else self.sample_indices) or ())
        order = list(range(count))
        losses, indices = self.sample_losses, self.sample_indices
        if losses is not None and len(losses) == count:
            order.sort(key=lambda i: -losses[i] if math.isfinite(losses[i]) else -math.inf)
        else:
            losses = None
        return [
            [str(i), "" if indices is None else str(indices[i]), "" if losses is None else f"{losses[i]:.6g}"]
            for i in order
        ]


def _table(columns: list[str], rows: list[list[str]]) -> list[Any]:
    """Return a table of the first rows, and a line that counts the others; nothing if there are no rows."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return []
    table = Table(*columns, box=SIMPLE)
    for row in rows[:_ROWS]:
        table.add_row(*map(escape, row))
    left = len(rows) - _ROWS
    return [table, *([f"  and {left} more (--json lists all)"] if left > 0 else [])]


def _shapes(tree: Any) -> Any:
    """Return a tree in JSON types, with tensors as their dtype and shape."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, Mapping):
        return {str(name): _shapes(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_shapes(value) for value in tree]
    return tree if tree is None or isinstance(tree, bool | int | float | str) else type(tree).__name__


def _text(tree: Any) -> str:
    """Return the dtypes and shapes of the tensors of a tree."""
    found = [_shapes(leaf) for leaf in trees.leaves(tree) if isinstance(leaf, Tensor)]
    return ", ".join(found) or type(tree).__name__


def _number(value: float) -> float | str:
    """Return a number that JSON can express; NaN and infinity as text."""
    return value if math.isfinite(value) else str(value)


def _numbers(values: Mapping[str, float] | None) -> dict[str, float | str] | None:
    return None if values is None else {name: _number(value) for name, value in values.items()}
