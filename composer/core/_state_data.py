"""The part of State that a loop sets: data loaders, timestamps of training and evaluation, and metric values."""

from __future__ import annotations

import math
import warnings
from abc import ABC
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.data_sharding import FULL_SHARD, DataShard
from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.metric_values import MetricValues
from composer.core.phase import Phase, TrainerMode
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.types import Batch
from composer.ledger.clock import LedgerClock
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from composer.core.timestamp import Timestamp

__all__ = ["StateData"]


class StateData(ABC):
    """Data, progress and metric values of a :class:`.State`.

    Each attribute is created on first access, so that a subclass that skips the constructor, such as a test double,
    has it too.

    >>> from composer import State
    >>> class Double(State):
    ...     def __init__(self) -> None:
    ...         self.eval_timestamp = self.timestamp.to_next_batch(4)
    >>> Double().eval_timestamp.sample
    Time(4, TimeUnit.SAMPLE)
    """

    rank_zero_seed: int
    data_shard: DataShard = FULL_SHARD
    microbatch_size: int | None = None

    @cached_property
    def seed_rank(self) -> int:
        """Offset of this rank's seed from the seed of the run."""
        return dist.get_global_rank()

    @property
    def seed(self) -> int:
        """Seed of this rank."""
        return self.rank_zero_seed + self.seed_rank

    @cached_property
    def clock(self) -> LedgerClock:
        """Assigns the wall time of the run to categories, see :class:`.Ledger`."""
        return LedgerClock()

    @cached_property
    def train_phase(self) -> Phase:
        """Data and progress of training."""
        return Phase(TrainerMode.TRAIN, "train")

    @cached_property
    def eval_phase(self) -> Phase:
        """Data and progress of evaluation."""
        return Phase(TrainerMode.EVAL)

    @cached_property
    def predict_phase(self) -> Phase:
        """Data and progress of prediction."""
        return Phase(TrainerMode.PREDICT, "predict")

    @cached_property
    def phase(self) -> Phase:
        """The active phase: training, evaluation or prediction."""
        return self.train_phase

    @property
    def timestamp(self) -> Timestamp:
        """Progress of training."""
        return self.train_phase.timestamp

    @timestamp.setter
    def timestamp(self, timestamp: Timestamp) -> None:
        self.train_phase.timestamp = timestamp

    @property
    def eval_timestamp(self) -> Timestamp:
        """Progress of the evaluation."""
        return self.eval_phase.timestamp

    @eval_timestamp.setter
    def eval_timestamp(self, timestamp: Timestamp) -> None:
        self.eval_phase.timestamp = timestamp

    @property
    def predict_timestamp(self) -> Timestamp:
        """Progress of the prediction."""
        return self.predict_phase.timestamp

    @predict_timestamp.setter
    def predict_timestamp(self, timestamp: Timestamp) -> None:
        self.predict_phase.timestamp = timestamp

    @property
    def device_train_microbatch_size(self) -> int | None:
        """Number of samples per forward pass; the loader's batch size if none was given."""
        if self.microbatch_size is not None or self.train_phase.loader is None:
            return self.microbatch_size
        return self.train_phase.loader.__batch_size__

    @device_train_microbatch_size.setter
    def device_train_microbatch_size(self, size: int | None) -> None:
        self.microbatch_size = size

    @property
    def grad_accum(self) -> int:
        """Number of microbatches in a full batch (gradient accumulation); an old name."""
        size = None if self.train_phase.loader is None else self.train_phase.loader.__batch_size__
        return 1 if size is None or self.microbatch_size is None else math.ceil(size / self.microbatch_size)

    def set_dataloader(
        self,
        dataloader: DataSpec | Iterable[Batch] | None = None,
        dataloader_label: str | None = None,
        dataloader_len: int | Time = -1,
    ) -> None:
        """Set the data of the active phase.

        Args:
            dataloader: The data, or None to remove it.
            dataloader_label: Its label; required with data.
            dataloader_len: Number of batches per epoch; -1 is all.

        Raises:
            ValueError: Data is given without a label.
        """
        phase = self.phase
        if dataloader is None:
            phase.loader, phase.label, phase.length, phase.iterator = None, None, None, None
            return
        if dataloader_label is None:
            raise ValueError("dataloader_label must be given with dataloader; it names the data in metrics.")
        spec = ensure_data_spec(dataloader)
        if phase.loader is None or phase.loader.dataloader is not spec.dataloader:
            phase.iterator = None
        phase.loader, phase.label, phase.length = spec, dataloader_label, spec.__length_of__(self.data_shard)
        if dataloader_len != -1:
            self.dataloader_len = dataloader_len

    @property
    def dataloader(self) -> Any:
        """The data of the active phase."""
        return None if self.phase.loader is None else self.phase.loader.dataloader

    @property
    def dataloader_label(self) -> str | None:
        """The label of the data of the active phase."""
        return self.phase.label

    @property
    def train_dataloader(self) -> Any:
        """The training data; set to a loader or a data spec."""
        return None if self.train_phase.loader is None else self.train_phase.loader.dataloader

    @train_dataloader.setter
    def train_dataloader(self, dataloader: DataSpec | Iterable[Batch] | None) -> None:
        phase, self.phase = self.phase, self.train_phase
        try:
            self.set_dataloader(dataloader, None if dataloader is None else self.train_phase.label or "train")
        finally:
            self.phase = phase

    # The name that clients of the predecessor read and set.
    _train_dataloader = train_dataloader

    @property
    def dataloader_len(self) -> Time | None:
        """Number of batches per epoch in the active phase, or None if unknown.

        Set to a number or a time in batches; -1 is all. A number larger than the data is reduced, with a warning.
        """
        return None if self.phase.length is None else Time.from_batch(self.phase.length)

    @dataloader_len.setter
    def dataloader_len(self, length: int | Time) -> None:
        given = ensure_time(length, TimeUnit.BATCH, "dataloader_len")
        count = int(given.value)
        if given.unit is not TimeUnit.BATCH or count < -1:
            raise ValueError(f"dataloader_len must be a number of batches, or -1 for all; got {str(given)!r}.")
        full = None if self.phase.loader is None else self.phase.loader.__length_of__(self.data_shard)
        if count == -1:
            self.phase.length = full
            return
        if full is not None and count > full:
            message = f"The data has {full} batches per epoch, fewer than dataloader_len={count}; {full} are used."
            warnings.warn(message, ComposerWarning, stacklevel=2)
            count = full
        self.phase.length = count

    @cached_property
    def train_metrics(self) -> dict[str, Metric]:
        """Metrics of the training data by name."""
        return {}

    @cached_property
    def eval_metrics(self) -> dict[str, dict[str, Metric]]:
        """Metrics of the evaluation data by label and name."""
        return {}

    @cached_property
    def metric_outputs(self) -> dict[str, Any]:
        """The values that ``update_metric`` returned."""
        return {}

    @cached_property
    def total_loss_dict(self) -> dict[str, Tensor]:
        """The last step's losses by name, on the device."""
        return {}

    @cached_property
    def train_values(self) -> dict[str, Any]:
        """The last computed values of the training metrics."""
        return {}

    @cached_property
    def eval_values(self) -> dict[str, dict[str, Any]]:
        """The last computed values of the evaluation metrics by label and name."""
        return {}

    @cached_property
    def _train_metric_values(self) -> MetricValues:
        return MetricValues()

    @cached_property
    def _eval_metric_values(self) -> MetricValues:
        return MetricValues()

    @property
    def train_metric_values(self) -> dict[str, Any]:
        """Values of the training metrics by name, computed on access; all ranks must access it.

        A value that a script sets is kept until its metric is updated.
        """
        metrics = self.train_metrics or {}
        return self._train_metric_values.refresh({name: metric.compute() for name, metric in metrics.items()})

    @train_metric_values.setter
    def train_metric_values(self, values: dict[str, Any]) -> None:
        self._train_metric_values.replace(values)

    @property
    def eval_metric_values(self) -> dict[str, Any]:
        """Values of the evaluated metrics by name (the last label wins) and by ``<label>/<name>``.

        A value that a script sets is kept until its metric is updated.
        """
        values: dict[str, Any] = {}
        for label, metrics in self.eval_metrics.items():
            known = self.eval_values.get(label, {})
            for name, metric in metrics.items():
                if metric.update_called or name in known:  # in a checkpoint, or before this evaluation
                    value = metric.compute() if metric.update_called else known[name]
                    values[name] = values[f"{label}/{name}"] = value
        return self._eval_metric_values.refresh(values)

    @eval_metric_values.setter
    def eval_metric_values(self, values: dict[str, Any]) -> None:
        self._eval_metric_values.replace(values)
