"""MLPerfCallback: write the log and the system description of an MLPerf training submission."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from composer import dist
from composer._numbers import whole_number
from composer._text import did_you_mean, one_of
from composer.callbacks._mllog import MLPerfLog
from composer.callbacks._system_description import DIVISIONS, STATUSES, get_system_description
from composer.core.callback import Callback
from composer.core.metric_direction import larger_is_better
from composer.core.metric_names import MetricName, as_threshold, spellings

if TYPE_CHECKING:
    from composer.core.data_spec import DataSpec
    from composer.core.evaluator import Evaluator
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["MLPerfCallback", "get_system_description"]

BENCHMARKS: Final = ("resnet", "bert")


class MLPerfCallback(Callback):
    """Writes the files that the MLPerf training rules require, from rank 0, with the ``mlperf_logging`` package.

    The log is ``<root_folder>/results/<system_name>/<benchmark>/result_<index>.txt``. It contains the submission; when
    caches were cleared, and when initialization, training, blocks of epochs, epochs and evaluations began and ended;
    the seed, the batch size and the numbers of samples; the accuracy of each evaluation, and when the target was
    reached. The system description is ``<root_folder>/systems/<system_name>.json``. Both are uploaded to the loggers
    that store files when the run is closed. A submission to the closed division also needs the hyperparameters of the
    benchmark's optimizer: write them with :meth:`log_event`.

    Args:
        root_folder: Folder of the submission; created if missing.
        index: Number of the run among the repetitions of a submission; incremented for each further run that uses the
            callback.
        benchmark: "resnet" or "bert".
        target: Value of the metric at which the run succeeds: a lower bound, or an upper bound if
            :func:`.larger_is_better` returns False.
        division: "open" or "closed".
        metric_name: The metric, of evaluation data; larger is better.
        metric_label: Label of the evaluator; a label in ``metric_name``, such as "test/MulticlassAccuracy", takes
            precedence.
        submitter: The submitting organization.
        system_name: Name of the system; by default derived from its accelerators or processors.
        status: Availability of the system: "onprem", "cloud" or "preview".
        cache_clear_cmd: Command that clears the caches of the system, run once on each node when the trainer is
            created: a string, which is split as by a shell, or a list of arguments.
        host_processors_per_node: Number of processors (sockets) per node; by default counted.
        exit_at_target: Stop training when the target is reached.

    Raises:
        TypeError: ``target`` or ``index`` is not a number.
        ValueError: An argument is invalid; when training starts, also if the size of the data is unknown or the metric
            does not exist.
        FileExistsError: When the trainer is created: the log exists.
        subprocess.CalledProcessError: When the trainer is created: ``cache_clear_cmd`` fails.

    >>> MLPerfCallback("submission", index=0, system_name="8x accelerator").log_path.as_posix()
    'submission/results/8x accelerator/resnet/result_0.txt'
    """

    writes_output = True

    def __init__(
        self,
        root_folder: str | Path,
        index: int,
        benchmark: str = "resnet",
        target: float = 0.759,
        division: str = "open",
        metric_name: str = "MulticlassAccuracy",
        metric_label: str = "eval",
        submitter: str = "MosaicML",
        system_name: str | None = None,
        status: str = "onprem",
        cache_clear_cmd: str | Sequence[str] | None = None,
        host_processors_per_node: int | None = None,
        exit_at_target: bool = False,
    ) -> None:
        self.benchmark = one_of("benchmark", benchmark, BENCHMARKS)
        self.division = one_of("division", division, DIVISIONS)
        self.status = one_of("status", status, STATUSES)
        self.index = whole_number("index", index)
        self.target = as_threshold("target", target)
        self.metric_name = metric_name
        self.metric_label = metric_label
        self.submitter = submitter
        self.cache_clear_cmd = shlex.split(cache_clear_cmd) if isinstance(cache_clear_cmd, str) else cache_clear_cmd
        self.exit_at_target = exit_at_target
        self.system_description = get_system_description(
            submitter, division, status, system_name, host_processors_per_node
        )
        self.system_name = self.system_description["system_name"]
        self.success = False
        self.root_folder = Path(root_folder)
        self._file_name = self.system_name.replace("/", "-")
        self._runs = 0
        self._log: MLPerfLog | None = None
        self._clock_runs = self._clock_ran = False

    @property
    def log_path(self) -> Path:
        """Path of the run's log."""
        return self.root_folder / "results" / self._file_name / self.benchmark / f"result_{self.index}.txt"

    @property
    def description_path(self) -> Path:
        """Path of the system description."""
        return self.root_folder / "systems" / f"{self._file_name}.json"

    def log_event(self, key: str, value: Any, **metadata: Any) -> None:
        """Write a custom line, such as ``log_event("opt_base_learning_rate", 8.5)``; on rank 0 only.

        Args:
            key: The key of the event.
            value: Its value; must be JSON serializable.
            **metadata: Additional metadata.

        Raises:
            RuntimeError: The log is not open: the trainer is not created yet, or closed.
        """
        if dist.get_global_rank() != 0:
            return
        if self._log is None:
            raise RuntimeError("The MLPerf log is not open: call log_event after the trainer is created, before close.")
        self._log.event(key, value, metadata)

    def init(self, state: State, logger: Logger) -> None:
        """Open the log, describe the submission, and clear caches."""
        self.success = self._clock_runs = self._clock_ran = False
        self.index += 1 if self._runs else 0
        self._runs += 1
        if dist.get_global_rank() == 0:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = MLPerfLog(self.log_path)
            self.description_path.parent.mkdir(parents=True, exist_ok=True)
            self.description_path.write_text(json.dumps(self.system_description, indent=4))
        if self.cache_clear_cmd is not None:
            if dist.get_local_rank() == 0:
                subprocess.run(list(self.cache_clear_cmd), check=True)
            self._event("cache_clear", True)
        self._start("init_start")
        self._event("submission_benchmark", self.benchmark)
        self._event("submission_division", self.division)
        self._event("submission_org", self.submitter)
        self._event("submission_platform", self.system_name)
        self._event("submission_status", self.status)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Describe the data, and start the clock once all ranks are ready; once per run."""
        if self._clock_ran:
            return
        evaluator = self._find_metric(state)
        samples, batch_size = _sizes("train_dataloader", state.train_phase.loader)
        eval_samples, _ = _sizes("eval_dataloader", evaluator.dataloader)
        self._event("seed", state.rank_zero_seed)
        self._event("global_batch_size", batch_size * dist.get_world_size())
        self._event("gradient_accumulation_steps", state.grad_accum)
        self._event("train_samples", samples)
        self._event("eval_samples", eval_samples)
        self._end("init_stop")
        dist.barrier()
        self._clock_runs = self._clock_ran = True
        self._start("run_start")

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Log the start of an epoch, counted from 1, and of a block that consists of this epoch."""
        epoch = state.timestamp.epoch.value + 1
        self._start("epoch_start", epoch_num=epoch)
        self._start("block_start", first_epoch_num=epoch, epoch_count=1)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the end of an epoch; the evaluation that belongs to the block follows."""
        self._end("epoch_stop", epoch_num=state.timestamp.epoch.value)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Log the end of the block."""
        self._end("block_stop", first_epoch_num=state.timestamp.epoch.value)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Log the start of an evaluation."""
        if state.dataloader_label == self.metric_label:
            self._start("eval_start", epoch_num=state.train_phase.epochs_trained)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Log the end of an evaluation and its accuracy, and check whether the target is reached."""
        if state.dataloader_label != self.metric_label:
            return
        epochs = state.train_phase.epochs_trained
        self._end("eval_stop", epoch_num=epochs)
        value = float(state.eval_metrics[self.metric_label][self.metric_name].compute())
        self._event("eval_accuracy", value, epoch_num=epochs)
        metric = state.eval_metrics[self.metric_label][self.metric_name]
        # If the direction is unknown, larger is better, as for the accuracies of the benchmarks.
        larger = larger_is_better(self.metric_name, metric) is not False
        if (value >= self.target if larger else value <= self.target) and not self.success:
            self.success = True
            self._stop_clock("success", epochs)
            if self.exit_at_target:
                word = "above" if larger else "below"
                reason = f"{self.metric_name} {value:.4g} at or {word} the target {self.target:.4g}"
                state.stop_training(everywhere=True, reason=reason)

    def close(self, state: State, logger: Logger) -> None:
        """Stop the clock of a run that did not succeed, and upload the files."""
        self._stop_clock("aborted", state.train_phase.epochs_trained)
        if self._log is None:
            return
        self._log.close()
        self._log = None
        for path in (self.log_path, self.description_path):
            logger.upload_file(path.relative_to(self.root_folder).as_posix(), path)

    def _event(self, key: str, value: Any, **metadata: Any) -> None:
        if self._log is not None:
            self._log.event(key, value, metadata)

    def _start(self, key: str, **metadata: Any) -> None:
        if self._log is not None:
            self._log.start(key, metadata)

    def _end(self, key: str, **metadata: Any) -> None:
        if self._log is not None:
            self._log.end(key, metadata)

    def _stop_clock(self, status: str, epochs: float) -> None:
        if self._clock_runs:
            self._clock_runs = False
            self._end("run_stop", status=status, epoch_num=epochs)

    def _find_metric(self, state: State) -> Evaluator:
        """Take the label from the metric's name if it contains one; return the evaluator."""
        known = {evaluator.label: state.eval_metrics.get(evaluator.label, {}) for evaluator in state.evaluators}
        metric = next(
            (MetricName(label, name) for label in known for name in known[label]
             if self.metric_name in spellings(label, name)[1:]),
            None,
        )  # fmt: skip
        if metric is None:
            if self.metric_name not in known.get(self.metric_label, {}):
                raise ValueError(self._no_metric(known))
            metric = MetricName(self.metric_label, self.metric_name)
        self.metric_label, self.metric_name = metric
        return next(evaluator for evaluator in state.evaluators if evaluator.label == metric.label)

    def _no_metric(self, known: Mapping[str, Mapping[str, Any]]) -> str:
        metrics = [f"{label}/{name}" for label, metrics in known.items() for name in metrics]
        requested = f"{self.metric_label}/{self.metric_name}"
        return (
            f"metric_label={self.metric_label!r} and metric_name={self.metric_name!r} match no metric of an evaluator; "
            f"available: {sorted(metrics)}.{did_you_mean(requested, metrics)}"
        )


def _sizes(argument: str, spec: DataSpec | None) -> tuple[int, int]:
    """Return the number of samples per epoch and per batch."""
    if spec is None or spec.num_samples is None or spec.__batch_size__ is None:
        raise ValueError(
            f"MLPerf requires the size of the data, but {argument} does not define it. Pass a torch DataLoader over a "
            f"dataset with a length, or DataSpec(..., num_samples=...)."
        )
    return spec.num_samples, spec.__batch_size__
