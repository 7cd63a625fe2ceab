"""Facts of a run that decide what can be changed about it: batch size, precision, optimizers, blocks, sharding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from composer.parallel.activation_checkpointing import checkpointed_modules
from composer.trials.assignments import Assignment, apply

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["fsdp_argument", "num_blocks", "run_facts", "with_own_settings", "with_tensor_parallelism"]

# Settings of FSDP that a strategy decides.
_OF_STRATEGY = ("data_parallel_shard_degree", "data_parallel_replicate_degree", "sharding_strategy", "device_mesh")


def run_facts(state: State, batch_size: int) -> dict[str, Any]:
    """Return facts of a run, in JSON types.

    Args:
        state: The state, after a step.
        batch_size: Number of samples in a batch of a rank.

    >>> from composer import State
    >>> run_facts(State(model=nn.Linear(2, 2)), 8)["parameters"]
    6
    """
    size = state.microbatch_size
    return {
        "batch_size": batch_size,
        "microbatch": batch_size if size is None else min(size, batch_size),
        "precision": state.precision.value,
        "tf32": torch.backends.cuda.matmul.fp32_precision == "tf32",
        "parameters": sum(parameter.numel() for parameter in state.model.parameters()),
        "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
        # Whether the optimizers have kernels to choose from, and the choice; None leaves it to torch.
        "kernels": [_kernels(optimizer.defaults) for optimizer in state.optimizers],
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
        "eval_microbatch": max((each.microbatch_size or 0 for each in state.evaluators), default=0),
        "evaluators": [evaluator.label for evaluator in state.evaluators],
    }


def num_blocks(model: nn.Module) -> int:
    """Return the number of modules whose activations can be checkpointed.

    Args:
        model: The model as the program passes it.

    >>> num_blocks(nn.Sequential(*[nn.TransformerEncoderLayer(4, 2, 4) for _ in range(3)]))
    3
    >>> num_blocks(nn.Linear(2, 2))
    0
    """
    try:
        return len(checkpointed_modules(model))
    except ValueError:  # the model has no repeated blocks, and selects none
        return 0


def fsdp_argument(arguments: Mapping[str, Any]) -> str:
    """Return the argument that holds the FSDP configuration of a run, as in an assignment; empty if there is none.

    Args:
        arguments: The arguments of the trainer.

    >>> fsdp_argument({"parallelism_config": {"fsdp": {}}, "fsdp_config": None})
    'parallelism_config.fsdp'
    """
    if arguments.get("fsdp_config") is not None:
        return "fsdp_config"
    config = arguments.get("parallelism_config")
    for name in ("fsdp", "fsdp2"):
        found = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if found is not None:
            return f"parallelism_config.{name}"
    return ""


def with_own_settings(arguments: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of the trainer whose sharding has the settings of the program, such as its checkpointing.

    Args:
        arguments: The arguments with the sharding of a strategy, as ``{"fsdp": {...}}``, whose settings come first.
        given: The arguments of the program.

    >>> given = {"parallelism_config": {"fsdp": {"activation_checkpointing": 2}}}
    >>> with_own_settings({"parallelism_config": {"fsdp": {}}}, given)
    {'parallelism_config': {'fsdp': {'activation_checkpointing': 2}}}
    """
    argument, _, name = fsdp_argument(given).partition(".")
    if not argument:
        return dict(arguments)
    own: Any = given[argument]
    if name:
        own = own[name] if isinstance(own, Mapping) else getattr(own, name)
    settings = dict(cast("Mapping[str, Any]", own)) if isinstance(own, Mapping) else vars(own)
    kept = {key: value for key, value in settings.items() if key not in _OF_STRATEGY}
    return {**arguments, "parallelism_config": {"fsdp": {**kept, **arguments["parallelism_config"]["fsdp"]}}}


def with_tensor_parallelism(arguments: Mapping[str, Any], degree: int) -> dict[str, Any]:
    """Return arguments of the trainer with which a number of ranks share the layers of the program's plan.

    Args:
        arguments: The arguments.
        degree: The number of ranks.

    Raises:
        ValueError: The program does not say how to shard its layers.

    >>> with_tensor_parallelism({"parallelism_config": {"tp": {"layer_plan": {"up": "..."}}}}, 4)
    {'parallelism_config': {'tp': {'layer_plan': {'up': '...'}, 'tensor_parallel_degree': 4}}}
    """
    config = arguments.get("parallelism_config")
    own = config.get("tp") if isinstance(config, Mapping) else getattr(config, "tp", None)
    plan = own.get("layer_plan") if isinstance(own, Mapping) else getattr(own, "layer_plan", None)
    if not plan:
        raise ValueError(
            "strategy 'tp' needs a plan of the layers to shard, which the program does not have; pass "
            "parallelism_config={'tp': {'layer_plan': {'up': ColwiseParallel(), 'down': RowwiseParallel()}}} to its "
            "Trainer, with the names of its layers, or use the strategy 'fsdp', which needs none."
        )
    return apply([Assignment.parse(f"parallelism_config.tp.tensor_parallel_degree={degree}")], arguments)


def _kernels(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: defaults[name] for name in ("foreach", "fused") if name in defaults}
