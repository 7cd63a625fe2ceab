"""Facts about a run: its modules, methods, callbacks and hooks, as the reference trial sees them after training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset

from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.state import State
from composer.core.traits import traits_of
from composer.verification import _data_facts
from composer.verification.code_facts import edits_in_place, own_states, suspects
from composer.verification.digests import has_generator
from composer.verification.exact_mode import batch_size
from composer.verification.module_watch import ModuleWatch
from composer.verification.objects import is_own, name_of
from composer.verification.snapshot import unwrapped

__all__ = ["collected", "gradient_hooks", "groups", "hooks_of"]


def collected(
    state: State, modules: ModuleWatch, changes: Mapping[str, Iterable[str]], without: Callback
) -> dict[str, Any]:
    """Return the facts, in JSON types.

    Args:
        state: The state of the run, after training.
        modules: What was seen of the modules.
        changes: What each callback and algorithm changes, by class name.
        without: The callback of the trial.
    """
    algorithms = {type(each).__name__ for each in state.algorithms if isinstance(each, Algorithm)}
    random = {name for name, changed in changes.items() if "random state" in changed}
    holders = {type(each).__name__ for each in state.algorithms if has_generator(each)}
    loader = state.train_phase.loader.dataloader
    return {
        "random_modules": modules.random_modules,
        "statistics_modules": modules.statistics_modules,
        "random_algorithms": sorted((algorithms & random) | holders),
        "random_callbacks": sorted(random - algorithms),
        "iterable": isinstance(getattr(loader, "dataset", None), IterableDataset),
        "made_by_sampler": type(getattr(loader, "sampler", None)) is BatchSampler,
        "token_function": _data_facts.token_function(state.train_phase.loader),
        "data_names": _data_facts.names(state.train_phase.loader),
        "classes": {name: type(module).__qualname__ for name, module in state.model.named_modules()},
        "in_place": edits_in_place(state),
        "own_states": own_states(state),
        "algorithms": [type(each).__name__ for each in state.algorithms],
        "callbacks": [type(each).__name__ for each in state.callbacks if each is not without],
        "schedules": [name_of(each) for each in map(unwrapped, state.schedulers)],
        "precision": state.precision.value,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "suspects": suspects(state),
        "workers": getattr(loader, "num_workers", None),
        "exact_batch_size": batch_size(state.train_phase.loader),
        "unsharded": {
            type(each).__name__: traits_of(each).sharding_reason
            for each in state.algorithms
            if not traits_of(each).sharding.supports_sharded_weights
        },
        "plan": None if state.tp_config is None else "tp",
        "metric_schedules": [name for name in map(name_of, state.schedulers) if "Plateau" in name],
    }


def gradient_hooks(state: State) -> list[str]:
    """Return the hooks of the program that can change gradients, with what they belong to.

    Args:
        state: The state of the run.
    """
    found = [
        f"the hook {hook} of {name}"
        for name, parameter in state.model.named_parameters()
        for hook in _own(parameter, "_backward_hooks", "_post_accumulate_grad_hooks")
    ]
    return found + [
        f"the hook {hook} of {name or 'the model'}"
        for name, module in state.model.named_modules()
        for hook in _own(module, "_backward_hooks", "_backward_pre_hooks")
    ]


def hooks_of(loss: Any) -> list[str]:
    """Return the hooks of the program on the loss, which scale all gradients.

    Args:
        loss: The loss, a tensor or several.
    """
    tensors = [leaf for leaf in trees.leaves(loss) if isinstance(leaf, Tensor)]
    return [f"the hook {hook} of the loss" for tensor in tensors for hook in _own(tensor, "_backward_hooks")]


def _own(part: Any, *attributes: str) -> Iterator[str]:
    """Yield the names of the functions of the program in dictionaries of hooks."""
    for attribute in attributes:
        for hook in (getattr(part, attribute, None) or {}).values():
            if is_own(hook):
                yield name_of(hook)


def groups(state: State) -> list[list[str]]:
    """Return the names of the parameters in each group of the optimizers.

    Args:
        state: The state of the run.
    """
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    return [
        [names.get(id(parameter), "?") for parameter in group["params"]]
        for optimizer in state.optimizers
        for group in optimizer.param_groups
    ]
