"""Post-hoc EMA: average the weights with several lengths during training, and choose the length afterwards.

    average_g(n) = b * average_g(n - 1) + (1 - b) * weights(n)        b = (1 - 1 / n) ** (g + 1)

The profile of such an average is a power of time, so that it covers the same fraction of the run at any time. From
snapshots of two or more of them, the average of any other length is reconstructed by least squares over their profiles.
The best length, which depends on all other settings and matters a lot, is found without repeating the run.

Paper: Analyzing and Improving the Training Dynamics of Diffusion Models, Karras et al. 2024,
https://arxiv.org/abs/2312.02696
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from composer import dist
from composer._numbers import real_number, whole_number
from composer.algorithms._power_averages import LONGEST, combination, exponent_of, step_of
from composer.algorithms._weight_averaging import Pairs, average_of, num_optimized, shared_weights, weights_of
from composer.checkpoint import file_format
from composer.checkpoint.sharded_tensors import shard_like
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.dist.dtensor import is_dtensor

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["EMASnapshot", "PostHocEMA", "load_ema_snapshots", "reconstruct_ema"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class EMASnapshot:
    """An average of the weights at some time of training.

    Attributes:
        length: Standard deviation of its profile, as a fraction of the run so far.
        updates: Number of weights averaged.
        weights: The averages by parameter name, on the CPU.

    Raises:
        TypeError: ``length`` or ``updates`` is not a number.
        ValueError: ``length`` is out of range, or ``updates`` is negative.

    >>> EMASnapshot(0.05, 100, {"bias": torch.zeros(1)}).updates
    100
    """

    length: float
    updates: int
    weights: dict[str, Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _check_length("length", self.length))
        object.__setattr__(self, "updates", whole_number("updates", self.updates))


def load_ema_snapshots(folder: str | Path) -> list[EMASnapshot]:
    """Load the snapshots that :class:`PostHocEMA` wrote into a folder.

    Args:
        folder: The folder.

    Returns:
        The snapshots, in chronological order.

    Raises:
        ValueError: The folder has no snapshots.

    >>> load_ema_snapshots("nowhere")
    Traceback (most recent call last):
    ...
    ValueError: folder='nowhere' has no snapshots, files named ema-*.pt.
    """
    files = sorted(Path(folder).glob("ema-*.pt"))
    if not files:
        raise ValueError(f"folder={str(folder)!r} has no snapshots, files named ema-*.pt.")
    return sorted(map(_load_snapshot, files), key=lambda snapshot: (snapshot.updates, snapshot.length))


def reconstruct_ema(snapshots: Sequence[EMASnapshot], length: float, updates: int | None = None) -> dict[str, Tensor]:
    """Combine snapshots into the average of another length.

        w = argmin |sum_i w_i p_i - p|^2            p, p_i: profiles over time, of the target average and of snapshots

    From the default lengths and twenty snapshots, lengths from 0.02 to 0.25 are reconstructed within about 2 %, and
    lengths between the two tracked ones within 0.1 %; more snapshots extend the range. Buffers that are not of a
    floating dtype are taken from the last snapshot used.

    Args:
        snapshots: Averages of two or more lengths, at several times.
        length: Standard deviation of the target profile, as a fraction of the run up to then: above 0, below 0.2887
            (the plain mean). 0.1 is about the last quarter.
        updates: Time of the target average, as a number of updates; by default that of the last snapshot.

    Returns:
        The average, by parameter name.

    Raises:
        ValueError: The length is out of range, or there is no snapshot up to that time.

    >>> short = EMASnapshot(0.05, 100, {"weight": torch.tensor([95.0])})
    >>> long = EMASnapshot(0.10, 100, {"weight": torch.tensor([89.0])})
    >>> reconstruct_ema([short, long], length=0.10)["weight"]
    tensor([89.])

    Paper: https://arxiv.org/abs/2312.02696 (Karras et al. 2024)
    """
    exponent = exponent_of(_check_length("length", length))
    last = max((snapshot.updates for snapshot in snapshots), default=0)
    updates = last if updates is None else whole_number("updates", updates)
    used = sorted((s for s in snapshots if 0 < s.updates <= updates), key=lambda snapshot: snapshot.updates)
    if not used:
        raise ValueError(f"There is no snapshot of the first {updates} updates, among the {len(snapshots)} given.")
    coefficients = combination([(exponent_of(s.length), s.updates) for s in used], (exponent, updates))
    made: dict[str, Tensor] = {}
    for name, newest in used[-1].weights.items():
        if not (newest.is_floating_point() or newest.is_complex()):
            made[name] = newest.clone()
            continue
        total = torch.zeros_like(newest)
        for coefficient, snapshot in zip(coefficients, used, strict=True):
            total.add_(snapshot.weights[name], alpha=coefficient)
        made[name] = total
    return made


class PostHocEMA(Algorithm):
    """Keeps averages of the weights with several lengths, and snapshots of them for :func:`reconstruct_ema`.

    Training, evaluation and prediction use the trained weights: get an average of any length afterwards with
    :meth:`get_ema_model`, or with :func:`reconstruct_ema` and the :attr:`snapshots`.

    When to use it:
        If the averaging length matters (diffusion models, generators, long runs) and repeating the run for each length
        is too expensive.

    When not to:
        If evaluations during training must use averaged weights: EMA does that, and can be combined with it.

    How to choose:
        Two lengths, 0.05 and 0.1, and twenty snapshots cover lengths from 0.02 to 0.25. For shorter ones take more
        snapshots; track three lengths to validate the reconstruction.

    Cost:
        A copy of the weights per length on the device and a pass over them per update; each snapshot is a copy of
        each average in the CPU memory of every rank, or in ``folder``.

    Args:
        lengths: The lengths to track, each above 0 and below 0.2887, as fractions of the run so far; two or more.
        snapshot_interval: Time between snapshots, in any unit; another is taken at the end of training.
        update_interval: Time between updates of the averages, in batches. With ``DiLoCo`` or ``LocalSGD`` on several
            ranks a multiple of ``sync_every``, when the ranks have the same weights; otherwise an error is raised.
        folder: Folder that rank 0 writes snapshots to; by default they stay in CPU memory.

    Raises:
        ValueError: A length is out of range, fewer than two are given, or a time is not positive.

    >>> PostHocEMA(lengths=(0.05, 0.1), snapshot_interval="500ba").lengths
    (0.05, 0.1)

    Paper: https://arxiv.org/abs/2312.02696 (Karras et al. 2024)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="Each rank averages its shard of the parameters; snapshots are unsharded.",
        engine_conflict="It reads the weights and swaps in their averages.",
        neutral={},
    )

    def __init__(
        self,
        lengths: Sequence[float] = (0.05, 0.1),
        snapshot_interval: str | Time | int = "0.05dur",
        update_interval: str | Time | int = "1ba",
        folder: str | Path | None = None,
    ) -> None:
        self.lengths = tuple(_check_length("Each of lengths", length) for length in lengths)
        if len(set(self.lengths)) < 2:
            raise ValueError(f"lengths must be two or more different values, as in (0.05, 0.1), but got {lengths!r}.")
        self.snapshot_interval = ensure_time(snapshot_interval, TimeUnit.BATCH, "snapshot_interval")
        self.update_interval = ensure_time(update_interval, TimeUnit.BATCH, "update_interval", [TimeUnit.BATCH])
        if self.snapshot_interval.value <= 0:
            raise ValueError(f"snapshot_interval must be positive, such as '500ba', but got {snapshot_interval!r}.")
        if self.update_interval.value <= 0:
            raise ValueError(
                f"update_interval must be a positive time in batches, such as '1ba', but got {update_interval!r}."
            )
        self.folder = None if folder is None else str(folder)
        self._exponents = [exponent_of(length) for length in self.lengths]
        self._updates = 0
        self._num_intervals = 0
        self._averages: list[dict[str, Tensor]] = [{} for _ in self.lengths]
        # Pairs of weights and averages, cached so that a step need not collect them.
        self._pairs: list[Pairs] = []
        self._num_optimized = 0
        self._in_memory: list[EMASnapshot] = []
        self._files: list[str] = []

    @property
    def snapshots(self) -> list[EMASnapshot]:
        """The snapshots so far, in chronological order, loaded from the folder if there is one."""
        return [*self._in_memory, *(_load_snapshot(Path(self.folder or "") / name) for name in self._files)]

    def get_ema_model(self, model: ModuleT, length: float, updates: int | None = None) -> ModuleT:
        """Copy the average of a length into a model.

        Args:
            model: A copy of the trained model, or after training that model itself: its weights are overwritten.
            length: The length, see :func:`reconstruct_ema`.
            updates: Time of the average, as a number of updates; by default that of the last snapshot.

        Returns:
            The model itself.

        Raises:
            ValueError: There is no snapshot yet, or the length is out of range.
        """
        averages = reconstruct_ema(self.snapshots, length, updates)
        weights = weights_of(model)
        Pairs(weights, {name: _like_weight(weights[name], average) for name, average in averages.items()}).load()
        return model

    def fit_start(self, state: State, logger: Logger) -> None:
        """Pair the weights of the model, now on its device, with their averages."""
        self._pair_all(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Pair the averages with weights of layers that were replaced."""
        self._pair(state.model)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Pair the weights that an optimizer got since; not at the next epoch, as a run may resume before it."""
        if num_optimized(state) != self._num_optimized:
            self._pair_all(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the averages, and take snapshots when they are due."""
        if state.timestamp.count(TimeUnit.BATCH) % int(self.update_interval.value):
            return
        self._updates += 1
        with shared_weights(state):
            for exponent, pairs in zip(self._exponents, self._pairs, strict=True):
                pairs.average(step_of(exponent, self._updates))
        num_due = self._num_due(state)
        if num_due > self._num_intervals:
            self._num_intervals = num_due
            self._take_snapshots()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Take the last snapshots and release the model."""
        self._take_snapshots()
        self._pairs = []

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the snapshots, or the file names of the snapshots."""
        return {
            **super().state_dict(),
            "updates": self._updates,
            "taken": self._num_intervals,
            "averages": [dict(averages) for averages in self._averages],
            "snapshots": [vars(snapshot) for snapshot in self._in_memory],
            "files": list(self._files),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load saved averages and snapshots.

        Args:
            state: A result of :meth:`state_dict`.

        Raises:
            ValueError: The state has a different number of lengths.
        """
        if len(state["averages"]) != len(self.lengths):
            raise ValueError(
                f"lengths={self.lengths} does not match the checkpoint, which has {len(state['averages'])} lengths. "
                f"Pass the same number of lengths."
            )
        self._updates, self._num_intervals = state["updates"], state["taken"]
        self._averages = [{name: tensor.clone() for name, tensor in saved.items()} for saved in state["averages"]]
        self._in_memory = [EMASnapshot(**snapshot) for snapshot in state["snapshots"]]
        self._files = list(state["files"])
        self._pairs = []

    def _pair_all(self, state: State) -> None:
        self._pair(state.model)
        self._num_optimized = num_optimized(state)

    def _pair(self, model: nn.Module) -> None:
        weights = weights_of(model)
        if self._pairs and self._pairs[0].are_of(weights):
            return
        self._averages = [
            {name: average_of(weight, averages.get(name)) for name, weight in weights.items()}
            for averages in self._averages
        ]
        self._pairs = [Pairs(weights, averages) for averages in self._averages]

    def _num_due(self, state: State) -> int:
        """Return the number of snapshots that should have been taken by now."""
        interval = self.snapshot_interval
        return math.floor(state.progress(interval.unit) / interval.value + 1e-9)

    def _take_snapshots(self) -> None:
        """Take a snapshot of each average, unless there is one of this time."""
        last = max((snapshot.updates for snapshot in self._in_memory), default=0)
        if self._updates in (0, last) or any(name.endswith(_file_suffix(self._updates)) for name in self._files):
            return
        for length, averages in zip(self.lengths, self._averages, strict=True):
            snapshot = EMASnapshot(length, self._updates, {name: _full_copy(each) for name, each in averages.items()})
            if self.folder is None:
                self._in_memory.append(snapshot)
                continue
            name = f"ema-{length:g}-{_file_suffix(self._updates)}"
            if dist.get_global_rank() == 0:
                file_format.write(vars(snapshot), Path(self.folder) / name)
            self._files.append(name)


def _check_length(argument: str, length: Any) -> float:
    if not 0 < (number := real_number(argument, length)) < LONGEST:
        raise ValueError(f"{argument} must be above 0 and below {LONGEST:.4f} (the plain mean), but got {length!r}.")
    return number


def _full_copy(average: Any) -> Tensor:
    """Return a copy on the CPU, unsharded if the average is sharded."""
    return (average.full_tensor() if hasattr(average, "full_tensor") else average).detach().to("cpu", copy=True)


def _like_weight(weight: Tensor, average: Tensor) -> Tensor:
    """Move an average from the CPU to the device of its weight, sharded if the weight is."""
    return shard_like(average, weight) if is_dtensor(weight) else average.to(weight.device)


def _file_suffix(updates: int) -> str:
    return f"{updates:010d}.pt"


def _load_snapshot(file: Path) -> EMASnapshot:
    return EMASnapshot(**file_format.read(file))
