"""Exact mode: train in float64 without randomness and batch statistics.

Runs that split a batch in different ways must then agree up to the rounding of float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader

from composer import dist, trees
from composer.core.algorithm import Algorithm
from composer.core.data_spec import DataSpec
from composer.trainer.short_names import instances
from composer.trials.assignments import Assignment, apply

__all__ = ["Neutral", "as_float64", "batch_size"]


@dataclass(frozen=True)
class Neutral:
    """What exact mode leaves out.

    Args:
        random_modules: Names of the modules that sample random numbers in training; they run as in evaluation.
        statistics_modules: Names of the modules that use statistics of the batch, such as batch normalization; they
            run as in evaluation.
        algorithms: Class names of the algorithms that sample random numbers; they are removed.
        batch_size: Samples of a step on all ranks together; None if the batches cannot be changed.
    """

    random_modules: tuple[str, ...]
    statistics_modules: tuple[str, ...]
    algorithms: tuple[str, ...]
    batch_size: int | None = None

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Neutral:
        """Return what to leave out of a run.

        Args:
            facts: The facts that the reference trial recorded.

        >>> names = {"random_modules": ["drop"], "statistics_modules": [], "random_algorithms": []}
        >>> Neutral.from_facts({**names, "exact_batch_size": 8})
        Neutral(random_modules=('drop',), statistics_modules=(), algorithms=(), batch_size=8)
        """
        left_out = (tuple(facts[name]) for name in ("random_modules", "statistics_modules", "random_algorithms"))
        return cls(*left_out, batch_size=facts["exact_batch_size"])

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of the trainer for exact mode.

        Args:
            arguments: The arguments.
        """
        algorithms = instances("algorithms", arguments["algorithms"], Algorithm)
        arguments["model"].double()
        return {
            **arguments,
            "algorithms": [each for each in algorithms if type(each).__name__ not in self.algorithms],
            "precision": "fp32",  # that is, no autocast
            "precision_config": None,
        }

    def with_batches(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of the trainer or of fit whose batches are this rank's share of those of one process.

        A program may divide its batch size by the number of ranks or not: all ranks together train on as many samples.

        Args:
            arguments: The arguments.
        """
        if self.batch_size is None or batch_size(arguments["train_dataloader"]) is None:
            return arguments
        share = self.batch_size // dist.get_world_size()
        return apply([Assignment("train_dataloader.batch_size", "=", share)], arguments)

    def prepare(self, model: nn.Module) -> None:
        """Let the modules that are left out run as in evaluation, and cast tensors that are not parameters or buffers.

        Args:
            model: The model, ready for training.
        """
        names = {*self.random_modules, *self.statistics_modules}
        for name, module in model.named_modules():
            for attribute, value in list(vars(module).items()):
                if isinstance(value, Tensor) and value.is_floating_point():
                    setattr(module, attribute, value.double())
            if name in names:
                module.register_forward_pre_hook(_evaluating)
                module.register_forward_hook(_training, always_call=True)


def _evaluating(module: nn.Module, args: Any) -> None:
    """Switch a module to evaluation for the duration of its call."""
    del args
    module.training = False


def _training(module: nn.Module, args: Any, outputs: Any) -> None:
    """Switch it back."""
    del args, outputs
    module.training = True


def as_float64(batch: Any) -> Any:
    """Return a batch whose floating-point tensors are float64.

    Args:
        batch: The batch.

    >>> as_float64([torch.ones(1), torch.tensor([1])])
    [tensor([1.], dtype=torch.float64), tensor([1])]
    """

    def cast(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    return trees.map_tensors(cast, batch)


def batch_size(data: Any) -> int | None:
    """Return the batch size to train with in exact mode, a multiple of 4; None if the batches cannot be changed.

    Args:
        data: What the program passes as training data.

    >>> batch_size(DataLoader(torch.zeros(20, 1), batch_size=10))
    8
    """
    loader = data.dataloader if isinstance(data, DataSpec) else data
    if isinstance(loader, Mapping):
        loader = loader.get("dataloader")
    if type(loader) is not DataLoader:
        return None
    sampler: Any = loader.sampler
    size: int | None = (
        sampler.batch_size if loader.batch_size is None and type(sampler) is BatchSampler else loader.batch_size
    )
    return None if size is None else max(4, size // 4 * 4)
