"""Facts about a program that decide which variants apply: its data, model, optimizers, metrics and methods."""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, DataLoader

from composer import trees
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.metric_direction import larger_is_better
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.trainer.compilation import is_compiled
from composer.trees import ensure_tuple
from composer.trials.assignments import Assignment
from composer.trials.probe import Finished, Probe
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["FACTS_PROBE", "FactsProbe", "ProgramFacts"]

FACTS_PROBE = "composer.exploration.program_facts:FactsProbe"
Inputs = Literal["images", "tokens", "other"]
Labels = Literal["classes", "other"]


@dataclass(frozen=True)
class ProgramFacts:
    """What is known of a program after one step.

    Args:
        device: Type of the device.
        has_bf16: Whether the device computes in bfloat16 faster than in float32.
        precision: Precision of the program.
        is_compiled: Whether the program compiles its model.
        algorithms: Class names of its methods.
        inputs: What the inputs of a batch are: float images (B, C, H, W), or integer tokens (B, T).
        labels: "classes" for integer labels (B,).
        has_keys: Whether a batch is a mapping, so that methods that edit batches need names of its entries.
        low: Smallest value of the inputs.
        high: Largest value of the inputs.
        sequence_length: Number of tokens of a sequence; 0 if inputs are not tokens.
        learning_rates: The learning rate of each parameter group at the start.
        fixed_schedule: Class of a torch scheduler that has fixed the learning rates when the program created it, empty
            if there is none.
        batch_size: Samples of a batch, if the size can be changed; else 0.
        steps: Steps of the whole run; 0 if that is not known.
        has_convolutions: Whether the model has 2-D convolutions.
        block: Class of the blocks that the model repeats; empty if there is none.
        metrics: Names of the metrics of evaluators, and whether larger values are better (None if unknown).
        without_effect: Warnings of the program itself about what has no effect.
        invalid: Assignments that cannot be read or created, with the error.
        sources: Hashes of the source files of the program, by path.

    >>> ProgramFacts.from_json({"device": "cpu", "metrics": [["eval/Loss", False]]}).metrics
    (('eval/Loss', False),)
    """

    device: str = "cpu"
    has_bf16: bool = False
    precision: str = "fp32"
    is_compiled: bool = False
    algorithms: tuple[str, ...] = ()
    inputs: Inputs = "other"
    labels: Labels = "other"
    has_keys: bool = False
    low: float = 0.0
    high: float = 0.0
    sequence_length: int = 0
    learning_rates: tuple[float, ...] = ()
    fixed_schedule: str = ""
    batch_size: int = 0
    steps: int = 0
    has_convolutions: bool = False
    block: str = ""
    metrics: tuple[tuple[str, bool | None], ...] = ()
    without_effect: tuple[str, ...] = ()
    invalid: tuple[tuple[str, str], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProgramFacts:
        """Return the facts that :class:`FactsProbe` recorded.

        Args:
            value: The result of its trial.
        """
        given: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
        for pairs in ("metrics", "invalid"):
            given[pairs] = tuple((one, two) for one, two in value.get(pairs, ()))
        return cls(**given)


class FactsProbe(Probe):
    """Trains one step, and records the facts.

    Args:
        folder: Folder of the trial.
        assignments: Assignments to check. They may name classes that the program defines.

    >>> Trial("facts", target, FACTS_PROBE)  # doctest: +SKIP
    """

    def __init__(self, folder: Path, assignments: Sequence[str] = ()) -> None:
        super().__init__(folder)
        gc.unfreeze()  # the fork server hides what it has imported from the garbage collector
        self._assignments = assignments
        self._schedules: list[str] = []
        self._found: dict[str, Any] = {}
        self._warned: list[str] = []
        self._show, warnings.showwarning = warnings.showwarning, self._note_warning

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Note the schedules."""
        self._note_schedules(arguments)
        return arguments

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train one step of the ``fit`` that is meant."""
        if not self.is_meant:
            fit(**arguments)
            return
        self._note_schedules(arguments)
        first = _FirstStep()
        trainer.state.callbacks = [first, *trainer.state.callbacks]
        with contextlib.suppress(Finished):
            fit(**arguments)
        self._found = {
            **first.found,
            "is_compiled": is_compiled(trainer._run),  # pyright: ignore[reportPrivateUsage]
            "fixed_schedule": next(iter(self._schedules), ""),
            "without_effect": self._warned,
            "invalid": [[text, error] for text in self._assignments if (error := _error_of(text))],
        }

    def result(self) -> Mapping[str, Any]:
        """Return the facts."""
        return self._found

    def _note_schedules(self, arguments: Mapping[str, Any]) -> None:
        """Note schedules that hold numbers computed from the learning rates that they were created with."""
        given = ensure_tuple(arguments.get("schedulers"))
        self._schedules += [type(one).__name__ for one in given if isinstance(one, LRScheduler)]

    def _note_warning(self, message: Any, category: type[Warning], *where: Any, **named: Any) -> None:
        if issubclass(category, NoEffectWarning):
            self._warned.append(str(message))
        self._show(message, category, *where, **named)


class _FirstStep(Callback):
    """Notes the facts in the first step, and ends training after it."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        device = state.device.torch_device.type
        groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
        self.found = {
            "device": device,
            "has_bf16": _has_bf16(device),
            "precision": str(getattr(state.precision, "value", state.precision)),
            "algorithms": [type(one).__name__ for one in state.algorithms],
            "learning_rates": [float(group.get("initial_lr", group["lr"])) for group in groups],
            "batch_size": _batch_size(state.train_phase.loader),
            "steps": _steps(state),
            "has_convolutions": any(isinstance(one, nn.Conv2d) for one in state.model.modules()),
            "block": _block(state.model),
            "metrics": [
                [f"{label}/{name}", larger_is_better(name, metric)]
                for label, metrics in state.eval_metrics.items()
                for name, metric in metrics.items()
            ],
        }

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self.found |= _batch_facts(state.batch)

    def batch_end(self, state: State, logger: Logger) -> None:
        raise Finished


def _error_of(assignment: str) -> str:
    """Return why an assignment cannot be read or created."""
    try:
        Assignment.parse(assignment)
    except Exception as error:  # the class may be the user's
        return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
    return ""


def _batch_facts(batch: Any) -> dict[str, Any]:
    """Return what a batch consists of."""
    tensors = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor)]
    has_keys = isinstance(batch, Mapping)
    first: Any = next(iter(_named(batch, tensors)), None)
    facts: dict[str, Any] = {"has_keys": has_keys}
    if first is None:
        return facts
    if first.ndim == 4 and first.is_floating_point():
        facts |= {"inputs": "images", "low": float(first.min()), "high": float(first.max())}
    elif first.ndim == 2 and first.dtype in (torch.int32, torch.int64):
        facts |= {"inputs": "tokens", "sequence_length": first.shape[1]}
    last = tensors[-1]
    if not has_keys and len(tensors) == 2 and last.ndim == 1 and not last.is_floating_point():
        facts["labels"] = "classes"
    return facts


def _named(batch: Any, tensors: list[Tensor]) -> Iterator[Tensor]:
    """Yield the inputs of a batch."""
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        yield batch["input_ids"]
    yield from tensors


def _batch_size(spec: Any) -> int:
    """Return the samples of a batch of a loader of which a copy can have another number."""
    loader = getattr(spec, "dataloader", spec)
    if type(loader) is not DataLoader:
        return 0
    if loader.batch_size is not None:
        return loader.batch_size
    sampler: Any = loader.sampler
    return sampler.batch_size if type(sampler) is BatchSampler else 0


def _steps(state: State) -> int:
    """Return the number of steps of the run."""
    duration, epoch = state.max_duration, state.dataloader_len
    if duration is None:
        return 0
    if duration.unit == TimeUnit.BATCH:
        return int(duration.value)
    if duration.unit == TimeUnit.EPOCH and epoch is not None and math.isfinite(epoch.value):
        return int(duration.value * epoch.value)
    return 0


def _block(model: nn.Module) -> str:
    """Return the class of the blocks that a model repeats, such as its layers: the one with most parameters in all."""
    sums: dict[str, list[int]] = {}
    for module in model.modules():
        plain = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if not plain and sum(1 for _ in module.children()) > 1:
            sums.setdefault(type(module).__name__, []).append(sum(p.numel() for p in module.parameters()))
    repeated = {name: sum(sizes) for name, sizes in sums.items() if len(sizes) > 1}
    return max(repeated, key=lambda name: repeated[name], default="")


def _has_bf16(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        able = torch.cpu.get_capabilities()
        return bool(able.get("amx_bf16") or able.get("avx512_bf16"))
    return device != "meta"
