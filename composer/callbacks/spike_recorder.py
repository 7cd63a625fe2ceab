"""SpikeRecorder: note which samples were in the batches around a spike of the loss or of the gradient norm."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from composer._numbers import positive, whole_number
from composer._text import one_of
from composer.callbacks._async_readback import Readback
from composer.core.callback import Callback
from composer.core.epoch_iterator import EpochIterator
from composer.core.event import Event
from composer.core.run_log_file import RunFile
from composer.core.time import TimeUnit
from composer.dist.dtensor import joint_norm, norms

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SpikeRecorder"]

_LOSS, _NORM = "loss", "gradient_norm"
_WATCHED = {"loss": (_LOSS,), "norm": (_NORM,), "both": (_LOSS, _NORM)}
# Median and deviation change slowly: computing them in every step would be most of the cost.
_REFRESH = 16
# Smallest deviations, relative to the median: however smooth a curve is, no small difference is a spike. Gradient norms
# of sound runs jump by a factor of 2 after a plateau.
_MIN_DEVIATION = {_LOSS: 0.01, _NORM: 0.15}
# The standard error of the MAD of n values of a normal law is 1.17 / sqrt(n) of it; this is its 95% bound.
_MAD_ERROR = 2.0


class SpikeRecorder(Callback):
    """Writes the indices of the samples around a spike of the loss, or of the gradient norm, to a file.

    A value x is a spike if it is far above the last ``window`` values, or not finite:

        log x > median(log x_j) + z * max(1.4826 (1 + 2 / sqrt(window)) MAD(log x_j), d)

    Median and median absolute deviation (MAD), unlike mean and standard deviation, are not raised by earlier spikes;
    they are updated every 16 steps. The factor allows for the error of the MAD of a short window, and d is 0.01 for the
    loss and 0.15 for the gradient norm, so that small differences are no spikes. If values are not positive, they are
    compared without logarithms. The first ``window`` steps are a warm-up, in which only a non-finite value is a spike:
    losses and gradient norms change fast when training begins. Consecutive spikes are one spike: the first of
    them is recorded.

    Only positions in the data are kept, five integers for each of the last ``num_batches`` batches; the indices are
    computed from them when there is a spike. They are known for a torch ``DataLoader`` over a dataset with indices and
    a sampler of torch. The values are copied to the host asynchronously, so that no step waits for the device; on an
    accelerator a spike is noticed a few steps later. ``composer blame RUN --step N`` then ranks the samples.

    The file has a JSON object per spike: ``batch`` (its step), ``epoch``, ``watched`` ("loss" or "gradient_norm"),
    ``value``, ``median``, ``z``, and ``batches``: for the last batches up to the spike ``batch``, ``epoch``,
    ``position``, ``loss``, ``gradient_norm`` and ``indices``, a list for each rank, or null if unknown. A resumed run
    continues its file from where the checkpoint was saved. Logs ``spike_recorder/num_spikes`` at each spike.

    Args:
        watch: What to monitor: "loss", "norm" (the gradient norm before clipping) or "both". A norm of all gradients
            takes a pass over them in each backward pass.
        z_threshold: Number of deviations above the median at which a value is a spike.
        window: Number of last steps for median and deviation.
        num_batches: Number of batches to record for a spike, up to the one in which it happened.
        filename: Path of the file; may contain ``{run_name}`` and ``{rank}``. If it is the same for all ranks, rank 0
            writes it, with the indices of all ranks; with ``{rank}``, each rank writes one. The latter is for data that
            is sharded by the script, of which each rank only knows its own.
        remote_file_name: Name under which loggers that store files receive it; None does not upload it.
        overwrite: Whether to replace a file of an earlier run instead of moving it to ``name.1.jsonl``.

    Raises:
        ValueError: An argument is out of range, or a name has an unknown placeholder.

    >>> SpikeRecorder(watch="both", window=256).watch
    'both'

    Papers: https://arxiv.org/abs/2501.00656 (OLMo 2, 2025: spikes as outliers of the last 128 steps),
    https://arxiv.org/abs/2204.02311 (PaLM, 2022: restarting before a spike and skipping the batches around it),
    https://doi.org/10.1080/01621459.1993.10476408 (Rousseeuw and Croux 1993: efficiency of the MAD). Outliers by median
    and MAD: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers.
    """

    writes_output = True

    def __init__(
        self,
        watch: str = "loss",
        z_threshold: float = 6.0,
        window: int = 128,
        num_batches: int = 8,
        filename: str = "{run_name}/spikes.jsonl",
        remote_file_name: str | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.watch = one_of("watch", watch, _WATCHED)
        self.z_threshold = positive("z_threshold", z_threshold)
        window = whole_number("window", window, minimum=None)
        if window < 4:
            raise ValueError(f"window must be at least 4 steps, to compute a deviation; got {window!r}.")
        self.window = window
        self.num_batches = whole_number("num_batches", num_batches, minimum=1)
        self.num_spikes = 0
        self._run_file = RunFile(filename, remote_file_name, overwrite)
        self._curves = {name: _Curve(window, _MIN_DEVIATION[name]) for name in _WATCHED[watch]}
        self._readback = Readback()
        self._recent: deque[dict[str, Any]] = deque(maxlen=self.num_batches)
        self._size = 0  # of the file, in bytes
        self._in_spike = False
        self._saved: dict[str, Any] | None = None
        self._state: State | None = None
        self._logger: Logger | None = None
        self._norm: Tensor | None = None

    @property
    def filename(self) -> str:
        """Path of the file, with placeholders until the run is known."""
        return self._run_file.name

    def __listens__(self, event: Event) -> bool:
        """Leave backward passes alone unless the gradient norm is watched."""
        return super().__listens__(event) and (event is not Event.AFTER_BACKWARD or _NORM in self._curves)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run."""
        self._state, self._logger = state, logger

    def after_backward(self, state: State, logger: Logger) -> None:
        """Compute the norm of the gradients accumulated so far; after the last microbatch, of all."""
        gradients = [parameter.grad for parameter in state.model.parameters() if parameter.grad is not None]
        if not gradients:
            return
        self._norm = joint_norm(norms(gradients))
        if state.scaler is not None:
            self._norm = self._norm / state.scaler._get_scale_async()  # type: ignore[attr-defined]

    def batch_end(self, state: State, logger: Logger) -> None:
        """Start copying the values of the batch, and check those that have arrived."""
        if not self._run_file.is_active:
            return
        loss = state.total_loss_dict.get("loss/train/total")
        now, iterator = state.previous_timestamp, state.train_phase.iterator
        if loss is None or now is None:
            return
        position, step_size, loader_batches = None, None, 1
        if isinstance(iterator, EpochIterator) and iterator.resume_by == "indices":
            step_size, loader_batches = iterator.step, state.train_phase.num_fetched
            position = iterator.position_before(loader_batches)
        entry = {
            "batch": now.count(TimeUnit.BATCH),
            "epoch": now.count(TimeUnit.EPOCH),
            "position": position,
            "step_size": step_size,
            "loader_batches": loader_batches,
        }
        norm, self._norm = self._norm, None
        self._readback.put((_LOSS, entry, norm is None), loss)
        if norm is not None:
            self._readback.put((_NORM, entry, True), norm)
        self._check()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Wait for the values of the epoch."""
        self._check(wait=True)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait for the last values."""
        self._check(wait=True)

    def close(self, state: State, logger: Logger) -> None:
        """Discard pending values, and release the file."""
        self._readback = Readback()
        self._run_file.close()
        self._state = self._logger = None

    def state_dict(self) -> dict[str, Any]:
        """Return the last values and positions, and the position in the file."""
        self._check(wait=True)
        file = self._saved or {}
        if self._state is not None and self._run_file.path is not None:
            file = self._run_file.state_dict(self._state, bytes=self._size)
        return {
            "curves": {name: curve.state_dict() for name, curve in self._curves.items()},
            "recent": [dict(entry) for entry in self._recent],
            "num_spikes": self.num_spikes,
            "in_spike": self._in_spike,
            "file": dict(file),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the values, positions and the file of the saved run.

        Args:
            state: A result of :meth:`state_dict`.
        """
        if not state:
            return
        for name, curve in state["curves"].items():
            if name in self._curves:
                self._curves[name].load_state_dict(curve)
        self._recent = deque((dict(entry) for entry in state["recent"]), maxlen=self.num_batches)
        self.num_spikes, self._in_spike = state["num_spikes"], state["in_spike"]
        self._saved = dict(state["file"])
        self._run_file.load_state_dict(self._saved)

    def _check(self, wait: bool = False) -> None:
        """Check the values that have arrived."""
        for (name, entry, is_complete), value in self._readback.arrived(wait):
            entry[name] = value
            if is_complete:
                self._check_batch(entry)

    def _check_batch(self, entry: dict[str, Any]) -> None:
        """Record the batch if a spike begins with it, and add its values to the curves."""
        self._recent.append(entry)
        watched = [(name, curve) for name, curve in self._curves.items() if name in entry]
        spike = next(((name, curve) for name, curve in watched if curve.is_spike(entry[name], self.z_threshold)), None)
        if spike is not None and not self._in_spike:
            self._record(*spike, entry)
        self._in_spike = spike is not None
        for name, curve in watched:
            curve.add(entry[name])

    def _record(self, name: str, curve: _Curve, entry: Mapping[str, Any]) -> None:
        """Write a spike to the file, and log it."""
        assert self._state is not None and self._logger is not None
        self.num_spikes += 1
        z, value = curve.z(entry[name]), entry[name]
        found = {
            "batch": entry["batch"],
            "epoch": entry["epoch"],
            "watched": name,
            "value": value,
            "median": curve.median,
            "z": z,
            "batches": [
                {**{key: one.get(key) for key in ("batch", "epoch", "position", _LOSS, _NORM)}, **self._indices(one)}
                for one in self._recent
            ],
        }
        self._write(self._state, json.dumps(_strict(found), allow_nan=False) + "\n")
        self._run_file.upload(self._state, self._logger)
        self._logger.enqueue({"spike_recorder/num_spikes": self.num_spikes})
        distance = f", {z:.1f} deviations above the median {curve.median:.4g}" if math.isfinite(z) else ""
        text = f"Spike in batch {entry['batch']}: {name.replace('_', ' ')} {value:.4g}{distance}"
        self._logger.notice(f"{text}; the samples are in {self._run_file.name}", urgent=True)
        self._logger.log_event("spike", text, step=entry["batch"])

    def _indices(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the indices of a batch on each rank, or null."""
        assert self._state is not None
        iterators = self._state.train_phase.epoch_iterators
        order = None if iterators is None else iterators.order
        # A checkpoint may come from a run with another batch size or number of ranks.
        if order is None or entry["position"] is None or entry["step_size"] != order.step:
            return {"indices": None}
        if order.custom_sampler is not None:  # iterating it again may change its state
            return {"indices": None}
        ranks = [order] if order.is_data_sharded else [order.of_rank(rank) for rank in range(order.num_ranks)]
        where = entry["epoch"], entry["position"], entry.get("loader_batches", 1)
        return {"indices": [one.indices_at(*where) for one in ranks if one is not None]}

    def _write(self, state: State, line: str) -> None:
        """Append a line; a resumed file is truncated to its size when the checkpoint was saved."""
        if self._run_file.path is None:
            saved = self._run_file.open(state)
            path = self._run_file.path
            assert path is not None
            written = path.stat().st_size if path.exists() else 0
            self._size = min(int((saved or {}).get("bytes", 0)), written)
        assert self._run_file.path is not None
        with self._run_file.path.open("ab") as file:
            file.truncate(self._size)
            file.write(line.encode())
        self._size += len(line.encode())


class _Curve:
    """The last values of a curve, with their median and deviation."""

    def __init__(self, window: int, min_deviation: float) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._window, self._min_deviation = window, min_deviation
        self._num_added = 0
        self._center, self._deviation, self._is_log = 0.0, math.inf, True

    @property
    def median(self) -> float:
        """The median."""
        return math.exp(self._center) if self._is_log else self._center

    def z(self, value: float) -> float:
        """Return the distance of a value from the median, in deviations; infinite for values that are not finite."""
        if not math.isfinite(value):
            return math.inf
        if self._is_log and value <= 0:
            return 0.0
        return ((math.log(value) if self._is_log else value) - self._center) / self._deviation

    def is_spike(self, value: float, threshold: float) -> bool:
        """Return whether a value is a spike."""
        return self.z(value) > threshold

    def add(self, value: float) -> None:
        """Add a value, unless it is not finite."""
        if not math.isfinite(value):
            return
        self._values.append(value)
        self._num_added += 1
        if self._num_added == self._window or (self._num_added > self._window and self._num_added % _REFRESH == 0):
            self._refresh()

    def _refresh(self) -> None:
        self._is_log = min(self._values) > 0
        values = [math.log(value) for value in self._values] if self._is_log else list(self._values)
        self._center = statistics.median(values)
        spread = 1.4826 * statistics.median(abs(value - self._center) for value in values)
        spread *= 1 + _MAD_ERROR / math.sqrt(self._window)
        least = self._min_deviation if self._is_log else self._min_deviation * abs(self._center)
        self._deviation = max(spread, least) or math.inf

    def state_dict(self) -> dict[str, Any]:
        """Return the values and statistics."""
        statistics_now = [self._center, self._deviation, self._is_log]
        return {"values": list(self._values), "num_added": self._num_added, "statistics": statistics_now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the values and statistics."""
        self._values = deque(state["values"], maxlen=self._values.maxlen)
        self._num_added = state["num_added"]
        self._center, self._deviation, self._is_log = state["statistics"]


def _strict(value: Any) -> Any:
    """Return values in strict JSON types: NaN and infinity as strings that ``float`` parses."""
    if isinstance(value, dict):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
