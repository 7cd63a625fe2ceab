"""Post-hoc EMA: average the weights at a few lengths in training, and choose the length afterwards.

    average_g(n) = b * average_g(n - 1) + (1 - b) * weights(n)        b = (1 - 1 / n) ** (g + 1)

The weights of such an average are a power of time, so that it reaches over the same share of training at any time. From
snapshots of two or more of them that of any other length follows, by least squares over their profiles: no training is
repeated to find the best length, which matters more than one would think and depends on everything else.

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
from composer.algorithms._power_averages import LONGEST, combination, exponent_of, step_of
from composer.algorithms._weight_averaging import Pairs, beside, weights_of
from composer.checkpoint import file_format
from composer.checkpoint.sharded_tensors import shard_like
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.dist.dtensor import is_sharded

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["EMASnapshot", "PostHocEMA", "load_ema_snapshots", "reconstruct_ema"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class EMASnapshot:
    """An average as it was at some time of training.

    Attributes:
        length: Standard deviation of its profile, as a share of the training so far.
        updates: Number of weights averaged.
        weights: The averages by the names of the weights, on the host.

    >>> EMASnapshot(0.05, 100, {"bias": torch.zeros(1)}).updates
    100
    """

    length: float
    updates: int
    weights: dict[str, Tensor]


def load_ema_snapshots(folder: str | Path) -> list[EMASnapshot]:
    """Read the snapshots that :class:`PostHocEMA` wrote into a folder.

    Args:
        folder: The folder.

    Returns:
        The snapshots, in the order of time.

    Raises:
        ValueError: There is none.

    >>> load_ema_snapshots("nowhere")
    Traceback (most recent call last):
    ...
    ValueError: folder='nowhere' has no snapshots, files named ema-*.pt.
    """
    files = sorted(Path(folder).glob("ema-*.pt"))
    if not files:
        raise ValueError(f"folder={str(folder)!r} has no snapshots, files named ema-*.pt.")
    return sorted(map(_read, files), key=lambda snapshot: (snapshot.updates, snapshot.length))


def reconstruct_ema(snapshots: Sequence[EMASnapshot], length: float, updates: int | None = None) -> dict[str, Tensor]:
    """Combine snapshots into the average of another length.

        w = argmin |sum_i w_i p_i - p|^2            p, p_i: profiles over time, of the average wanted and of snapshots

    From the default lengths and twenty snapshots, those from 0.02 to 0.25 follow within about 2 %, and those between
    the two tracked within 0.1 %; more snapshots reach further. Buffers that are no floating numbers are those of the
    last snapshot that counts.

    Args:
        snapshots: Averages of two or more lengths, at several times.
        length: Standard deviation of the profile wanted, as a share of the training up to then: above 0, below 0.2887
            (the plain mean). 0.1 is about the last quarter.
        updates: Time of the average wanted, as a number of updates; that of the last snapshot by default.

    Returns:
        The average, by the names of the weights.

    Raises:
        ValueError: The length is out of its range, or there is no snapshot up to that time.

    >>> short = EMASnapshot(0.05, 100, {"weight": torch.tensor([95.0])})
    >>> long = EMASnapshot(0.10, 100, {"weight": torch.tensor([89.0])})
    >>> reconstruct_ema([short, long], length=0.10)["weight"]
    tensor([89.])

    Paper: https://arxiv.org/abs/2312.02696 (Karras et al. 2024)
    """
    exponent = exponent_of(_checked(length))
    last = max((snapshot.updates for snapshot in snapshots), default=0)
    updates = last if updates is None else updates
    used = sorted((s for s in snapshots if 0 < s.updates <= updates), key=lambda snapshot: snapshot.updates)
    if not used:
        raise ValueError(f"There is no snapshot up to {updates} updates, among {len(snapshots)}.")
    shares = combination([(exponent_of(s.length), s.updates) for s in used], (exponent, updates))
    made: dict[str, Tensor] = {}
    for name, newest in used[-1].weights.items():
        if not (newest.is_floating_point() or newest.is_complex()):
            made[name] = newest.clone()
            continue
        total = torch.zeros_like(newest)
        for share, snapshot in zip(shares, used, strict=True):
            total.add_(snapshot.weights[name], alpha=share)
        made[name] = total
    return made


class PostHocEMA(Algorithm):
    """Keeps averages of the weights over several lengths, and snapshots of them for :func:`reconstruct_ema`.

    Training, evaluation and prediction go on with the weights of training: an average of any length is had from
    :meth:`get_ema_model` afterwards, or from :func:`reconstruct_ema` and the :attr:`snapshots`.

    When to use it:
        Where the length of the average matters (diffusion models, generators, long trainings) and repeating the
        training for each length is out of the question.

    When not to:
        Where evaluations during training are to see averaged weights: EMA does that, and may run beside it.

    How to choose:
        Two lengths, 0.05 and 0.1, and twenty snapshots reach the lengths from 0.02 to 0.25. For shorter ones take
        more snapshots; track three lengths to have a check.

    Cost:
        A copy of the weights for each length on the device and a pass over them for each update; each snapshot a copy
        of each average on the host of every process, or in ``folder``.

    Args:
        lengths: The lengths tracked, each above 0 and below 0.2887, as shares of the training so far; two or more.
        snapshot_interval: Time between snapshots, in any unit; the end of training is one too.
        update_interval: Time between updates of the averages, in batches.
        folder: Where snapshots are written, by the first process; by default they stay in the memory of the host.

    Raises:
        ValueError: A length is out of its range, fewer than two are given, or a time is not positive.

    >>> PostHocEMA(lengths=(0.05, 0.1), snapshot_interval="500ba").lengths
    (0.05, 0.1)

    Paper: https://arxiv.org/abs/2312.02696 (Karras et al. 2024)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="Each process averages the weights that it holds; snapshots are put together for all.",
        engine_conflict="It reads the weights and puts averages in their place.",
    )

    def __init__(
        self,
        lengths: Sequence[float] = (0.05, 0.1),
        snapshot_interval: str | Time | int = "0.05dur",
        update_interval: str | Time | int = "1ba",
        folder: str | Path | None = None,
    ) -> None:
        self.lengths = tuple(_checked(length) for length in lengths)
        if len(set(self.lengths)) < 2:
            raise ValueError(f"lengths must be two or more different ones, as in (0.05, 0.1), but got {lengths!r}.")
        self.snapshot_interval = ensure_time(snapshot_interval, TimeUnit.BATCH, "snapshot_interval")
        self.update_interval = ensure_time(update_interval, TimeUnit.BATCH, "update_interval")
        if self.snapshot_interval.value <= 0:
            raise ValueError(f"snapshot_interval must be positive, such as '500ba', but got {snapshot_interval!r}.")
        if self.update_interval.unit is not TimeUnit.BATCH or self.update_interval.value <= 0:
            raise ValueError(
                f"update_interval must be a positive time in batches, such as '1ba', but got {update_interval!r}."
            )
        self.folder = None if folder is None else str(folder)
        self._exponents = [exponent_of(length) for length in self.lengths]
        self._updates = 0
        self._taken = 0
        self._averages: list[dict[str, Tensor]] = [{} for _ in self.lengths]
        # The weights beside each average, kept so that a step need not collect them.
        self._pairs: list[Pairs] = []
        self._kept: list[EMASnapshot] = []
        self._files: list[str] = []

    @property
    def snapshots(self) -> list[EMASnapshot]:
        """The snapshots so far, in the order of time, read from the folder if there is one."""
        return [*self._kept, *(_read(Path(self.folder or "") / name) for name in self._files)]

    def get_ema_model(self, model: ModuleT, length: float, updates: int | None = None) -> ModuleT:
        """Put the average of a length into a model.

        Args:
            model: A copy of the trained model, or that itself after training: its weights are overwritten.
            length: The length, see :func:`reconstruct_ema`.
            updates: Time of the average, as a number of updates; that of the last snapshot by default.

        Returns:
            The model itself.

        Raises:
            ValueError: There is no snapshot yet, or the length is out of its range.
        """
        averages = reconstruct_ema(self.snapshots, length, updates)
        weights = weights_of(model)
        Pairs(weights, {name: _beside(weights[name], average) for name, average in averages.items()}).load()
        return model

    def fit_start(self, state: State, logger: Logger) -> None:
        """Set the weights of the model, now on its device, beside their averages."""
        self._pair(state.model)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Take note of layers that were replaced."""
        self._pair(state.model)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the averages, and take snapshots when they are due."""
        if state.timestamp.count(TimeUnit.BATCH) % int(self.update_interval.value):
            return
        self._updates += 1
        for exponent, pairs in zip(self._exponents, self._pairs, strict=True):
            pairs.average(step_of(exponent, self._updates))
        due = self._due(state)
        if due > self._taken:
            self._taken = due
            self._snap()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Take the last snapshots and release the model."""
        self._snap()
        self._pairs = []

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the snapshots, or the names of the latter's files."""
        return {
            **super().state_dict(),
            "updates": self._updates,
            "taken": self._taken,
            "averages": [dict(averages) for averages in self._averages],
            "snapshots": [vars(snapshot) for snapshot in self._kept],
            "files": list(self._files),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages and snapshots.

        Args:
            state: A result of :meth:`state_dict`.

        Raises:
            ValueError: It is of another number of lengths.
        """
        if len(state["averages"]) != len(self.lengths):
            raise ValueError(
                f"lengths={self.lengths} does not go on with a run of {len(state['averages'])} lengths. Give as many."
            )
        self._updates, self._taken = state["updates"], state["taken"]
        self._averages = [{name: tensor.clone() for name, tensor in saved.items()} for saved in state["averages"]]
        self._kept = [EMASnapshot(**snapshot) for snapshot in state["snapshots"]]
        self._files = list(state["files"])
        self._pairs = []

    def _pair(self, model: nn.Module) -> None:
        weights = weights_of(model)
        if self._pairs and self._pairs[0].are_of(weights):
            return
        self._averages = [
            {name: beside(weight, averages.get(name)) for name, weight in weights.items()}
            for averages in self._averages
        ]
        self._pairs = [Pairs(weights, averages) for averages in self._averages]

    def _due(self, state: State) -> int:
        """The number of snapshots that the time asks for."""
        interval = self.snapshot_interval
        if interval.unit is not TimeUnit.DURATION:
            return math.floor(state.timestamp.get(interval.unit).value / interval.value + 1e-9)
        elapsed = state.get_elapsed_duration()
        if elapsed is None:
            raise ValueError(f"snapshot_interval={interval} is a share of the training, so max_duration must be set.")
        return math.floor(elapsed.value / interval.value + 1e-9)

    def _snap(self) -> None:
        """Take a snapshot of each average, unless this time has one."""
        last = max((snapshot.updates for snapshot in self._kept), default=0)
        if self._updates in (0, last) or any(name.endswith(_ending(self._updates)) for name in self._files):
            return
        for length, averages in zip(self.lengths, self._averages, strict=True):
            snapshot = EMASnapshot(length, self._updates, {name: _whole(each) for name, each in averages.items()})
            if self.folder is None:
                self._kept.append(snapshot)
                continue
            name = f"ema-{length:g}-{_ending(self._updates)}"
            if dist.get_global_rank() == 0:
                file_format.write(vars(snapshot), Path(self.folder) / name)
            self._files.append(name)


def _checked(length: float) -> float:
    if not 0 < length < LONGEST:
        raise ValueError(f"A length must be above 0 and below {LONGEST:.4f}, that of the plain mean; got {length!r}.")
    return float(length)


def _whole(average: Any) -> Tensor:
    """A copy on the host, of all parts if these are divided among processes."""
    return (average.full_tensor() if hasattr(average, "full_tensor") else average).detach().to("cpu", copy=True)


def _beside(weight: Tensor, average: Tensor) -> Tensor:
    """An average from the host on the device of its weight, in parts if the weight is."""
    return shard_like(average, weight) if is_sharded(weight) else average.to(weight.device)


def _ending(updates: int) -> str:
    return f"{updates:010d}.pt"


def _read(file: Path) -> EMASnapshot:
    return EMASnapshot(**file_format.read(file))
