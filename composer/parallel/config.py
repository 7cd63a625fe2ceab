"""What users say about dividing weights among processes, checked and brought into one form.

``parallelism_config={"fsdp": {...}, "tp": {...}}`` and the objects below say the same.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from composer._text import did_you_mean, one_of, positive

__all__ = ["FSDP2Config", "FSDPConfig", "ParallelismConfig", "ParallelismType", "TPConfig", "as_parallelism_config"]

_SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


class ParallelismType(StrEnum):
    """The dimensions of the mesh that the processes form, from the outermost.

    >>> [kind.value for kind in ParallelismType]
    ['data_parallel_replicate', 'data_parallel_shard', 'tensor_parallel']
    """

    DATA_PARALLEL_REPLICATE = "data_parallel_replicate"
    DATA_PARALLEL_SHARD = "data_parallel_shard"
    TENSOR_PARALLEL = "tensor_parallel"


@dataclass(kw_only=True, repr=False)
class FSDPConfig:
    """Fully sharded data parallelism: each process keeps a part of every weight, gradient and optimizer state.

    It is torch's second form, ``fully_shard``. The keys are those that configurations for the first form have; what
    some of them ask for happens by itself now, and those that ask for what cannot be had are refused with the reason.

    ======================================= ==========================================================================
    Happens by itself, whatever is said     ``limit_all_gathers``, ``sync_module_states`` (the weights of the first
                                            process become those of all), ``backward_prefetch`` (the next block is
                                            fetched while the gradients of the present one are computed)
    Refused unless at its neutral value     ``use_orig_params=False``, ``keep_low_precision_grads``, ``process_group``,
                                            ``te_checkpoint_wrapper``, ``te_shard_fp8_weight``, ``device_mesh``,
                                            ``backward_prefetch="NONE"``, ``activation_checkpointing_reentrant=True``
    ======================================= ==========================================================================

    Args:
        activation_checkpointing: Whether the blocks keep no activations and compute them again in the backward pass;
            a number n for every n-th block only, ``"selective"`` to keep the outputs of matrix products and attention.
        activation_checkpointing_reentrant: False or None; recomputation is of the kind that is not re-entrant.
        activation_cpu_offload: Whether activations wait for the backward pass in the memory of the host.
        auto_wrap: Whether blocks are gathered one by one, see :func:`.units_of`; False gathers the whole model at once.
        te_checkpoint_wrapper: False.
        te_shard_fp8_weight: False.
        backward_prefetch: ``"BACKWARD_POST"`` or ``"BACKWARD_PRE"``.
        backward_prefetch_limit: How many blocks are fetched ahead in the backward pass.
        cpu_offload: Whether weights, gradients and optimizer states live in the memory of the host; for accelerators.
        data_parallel_shard_degree: Among how many processes weights are divided; -1 is all that are left.
        data_parallel_replicate_degree: How many such groups there are, each with all weights (HSDP); -1 is all that are
            left.
        device_mesh: None; the degrees say what it is to be.
        forward_prefetch: Whether blocks are fetched before they are asked for, in the order in which the model lists
            them.
        forward_prefetch_limit: How many.
        ignored_modules: Modules whose weights every process keeps whole.
        keep_low_precision_grads: False.
        limit_all_gathers: Either.
        load_monolith_rank0_only: Whether only the first process reads a checkpoint that is one file.
        load_planner: Of ``torch.distributed.checkpoint``, for sharded checkpoints.
        mixed_precision: ``"DEFAULT"`` gathers weights in the precision of the training and adds up gradients in
            float32, ``"PURE"`` does both in the precision of the training, ``"FULL"`` both in the dtype of the weights.
            With the first two, normalizations (modules with "norm" in the name of their class) and embeddings are
            gathered in float32, except embeddings that share their weight with another layer. Or
            ``{"param_dtype": ..., "reduce_dtype": ...}``.
        process_group: None.
        reshard_after_forward: Whether blocks are freed after their forward pass and gathered again for the backward
            pass; a number is of how many processes then hold a block together. None goes by ``sharding_strategy``.
        save_planner: Of ``torch.distributed.checkpoint``, for sharded checkpoints.
        sharded_ckpt_prefix_dir: Name of the folder of a sharded checkpoint.
        sharding_strategy: ``"FULL_SHARD"``; ``"SHARD_GRAD_OP"``, which keeps blocks gathered until the backward pass;
            ``"NO_SHARD"``, data parallelism; ``"HYBRID_SHARD"`` and ``"_HYBRID_SHARD_ZERO2"``, the first two within a
            node with copies on each, unless degrees say otherwise.
        state_dict_type: Whether checkpoints are one file, ``"full"``, or a folder with parts of each process,
            ``"sharded"``.
        sync_module_states: Either.
        use_orig_params: True.
        verbose: Whether to tell the log which blocks there are.

    Raises:
        ValueError: A key asks for what is not there.

    >>> FSDPConfig(sharding_strategy="SHARD_GRAD_OP", data_parallel_shard_degree=8)
    FSDPConfig(data_parallel_shard_degree=8, sharding_strategy='SHARD_GRAD_OP')

    Paper: Zhao et al. 2023, https://arxiv.org/abs/2304.11277
    """

    activation_checkpointing: bool | int | str = False
    activation_checkpointing_reentrant: bool | None = None
    activation_cpu_offload: bool = False
    auto_wrap: bool = True
    te_checkpoint_wrapper: bool = False
    te_shard_fp8_weight: bool = False
    backward_prefetch: str = "BACKWARD_POST"
    backward_prefetch_limit: int = 1
    cpu_offload: bool = False
    data_parallel_shard_degree: int = -1
    data_parallel_replicate_degree: int | None = None
    device_mesh: DeviceMesh | None = None
    forward_prefetch: bool = False
    forward_prefetch_limit: int = 1
    ignored_modules: Sequence[nn.Module] | None = None
    keep_low_precision_grads: bool = False
    limit_all_gathers: bool = True
    load_monolith_rank0_only: bool = False
    load_planner: Any = None
    mixed_precision: str | Mapping[str, Any] = "DEFAULT"
    process_group: Any = None
    reshard_after_forward: bool | int | None = None
    save_planner: Any = None
    sharded_ckpt_prefix_dir: str = "ep{epoch}-ba{batch}"
    sharding_strategy: str = "FULL_SHARD"
    state_dict_type: str = "full"
    sync_module_states: bool = False
    use_orig_params: bool = True
    verbose: bool = False

    def __post_init__(self) -> None:
        for name, (neutral, reason) in _REFUSED.items():
            if getattr(self, name) not in neutral:
                raise ValueError(f"fsdp: {name}={getattr(self, name)!r} is not available: {reason}")
        if isinstance(self.activation_checkpointing, str):
            one_of("fsdp: activation_checkpointing", self.activation_checkpointing, ("selective",))
        elif not isinstance(self.activation_checkpointing, bool):
            _count("activation_checkpointing", self.activation_checkpointing)
        for name in ("backward_prefetch_limit", "forward_prefetch_limit"):
            _count(name, getattr(self, name))
        if isinstance(self.mixed_precision, str):
            named = self.mixed_precision.upper()
            self.mixed_precision = one_of("fsdp: mixed_precision", named, ("DEFAULT", "PURE", "FULL"))
        self.sharding_strategy = one_of("fsdp: sharding_strategy", self.sharding_strategy.upper(), _SHARDING_STRATEGIES)
        one_of("fsdp: state_dict_type", self.state_dict_type, ("full", "sharded"))

    @property
    def reshards(self) -> bool | int:
        """Whether blocks are freed between forward and backward pass, or among how many processes they stay divided."""
        if self.reshard_after_forward is not None:
            return self.reshard_after_forward
        return self.sharding_strategy in ("FULL_SHARD", "HYBRID_SHARD")

    def __repr__(self) -> str:
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        said = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
        return f"FSDPConfig({', '.join(said)})"


@dataclass
class FSDP2Config:
    """The keys of :class:`FSDPConfig` that configurations for ``fully_shard`` have.

    Args:
        device_mesh: The processes among which weights are divided, (shards) or (copies, shards); None is all.
        reshard_after_forward: Whether blocks are freed after their forward pass.
        activation_checkpointing: As there.
        activation_cpu_offload: As there.
        state_dict_type: As there.
        load_monolith_rank0_only: As there.
        mixed_precision: As there.
        verbose: As there.

    >>> FSDP2Config.from_compatible_attrs({"reshard_after_forward": False}).reshard_after_forward
    False
    """

    device_mesh: DeviceMesh | None = None
    reshard_after_forward: bool | int = True
    activation_checkpointing: bool | int | str = False
    activation_cpu_offload: bool = False
    state_dict_type: str = "sharded"
    load_monolith_rank0_only: bool = False
    mixed_precision: str | Mapping[str, Any] = "DEFAULT"
    verbose: bool = False

    @classmethod
    def settable_attrs(cls) -> set[str]:
        """Return the names of the keys."""
        return {field.name for field in dataclasses.fields(cls)}

    @classmethod
    def from_compatible_attrs(cls, attrs: Mapping[str, Any]) -> FSDP2Config:
        """Make one of keys and values.

        Args:
            attrs: By name.

        Raises:
            ValueError: A key does not exist.
        """
        _refuse_unknown(
            "fsdp2", {name: value for name, value in attrs.items() if name not in cls.settable_attrs()}, cls
        )
        return cls(**attrs)

    def as_fsdp(self) -> FSDPConfig:
        """Return the same as :class:`FSDPConfig`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        mesh = values.pop("device_mesh")
        config = FSDPConfig(**values)
        config.device_mesh = mesh  # which that one does not take from users
        return config


@dataclass
class TPConfig:
    """Tensor parallelism: layers divided among processes that compute on the same samples.

    Args:
        device_mesh: None; it follows from the degree.
        tensor_parallel_degree: Among how many processes, which are neighbours by rank.
        layer_plan: What is divided and how: styles of ``torch.distributed.tensor.parallel`` by names of modules,
            which may have ``*`` in them, as ``parallelize_module`` takes them. Weights that are used with parts of a
            sequence must be in it, so that their gradients are added up.

    Raises:
        ValueError: The degree is not positive, or there is no plan for a degree above 1.

    >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    >>> config = TPConfig(
    ...     tensor_parallel_degree=2, layer_plan={"up": ColwiseParallel(), "down": RowwiseParallel()}
    ... )
    >>> config.tensor_parallel_degree
    2

    Paper: Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053
    """

    device_mesh: DeviceMesh | None = None
    tensor_parallel_degree: int = 1
    layer_plan: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _count("tensor_parallel_degree", self.tensor_parallel_degree, "tp")
        if self.device_mesh is not None:
            raise ValueError("tp: device_mesh follows from tensor_parallel_degree; give that.")
        if self.tensor_parallel_degree > 1 and not self.layer_plan:
            raise ValueError(
                f"tp: tensor_parallel_degree={self.tensor_parallel_degree} needs a layer_plan, which says what is "
                f"divided: {{'up': ColwiseParallel(), 'down': RowwiseParallel()}}."
            )


@dataclass
class ParallelismConfig:
    """How weights are divided among processes.

    Args:
        fsdp: By fully sharded data parallelism.
        tp: By tensor parallelism.
        fsdp2: Another form of ``fsdp``; one of the two.

    Raises:
        ValueError: Both are given.

    >>> ParallelismConfig(fsdp=FSDPConfig())
    ParallelismConfig(fsdp=FSDPConfig(), tp=None, fsdp2=None)
    """

    fsdp: FSDPConfig | None = None
    tp: TPConfig | None = None
    fsdp2: FSDP2Config | None = None

    def __post_init__(self) -> None:
        if self.fsdp is not None and self.fsdp2 is not None:
            raise ValueError("parallelism_config has both 'fsdp' and 'fsdp2', which are the same; give one.")


def as_parallelism_config(config: Any) -> ParallelismConfig | None:
    """Return a configuration in one form: ``fsdp2`` as ``fsdp``, a degree of tensor parallelism of 1 as none.

    Args:
        config: A :class:`ParallelismConfig`, a mapping with its names and mappings or objects as values, or None.

    Raises:
        TypeError: It is something else.
        ValueError: A name does not exist, or a value is not available.

    >>> as_parallelism_config({"fsdp": {"sharding_strategy": "FULL_SHARD"}})
    ParallelismConfig(fsdp=FSDPConfig(), tp=None, fsdp2=None)
    >>> as_parallelism_config({"fdsp": {}})
    Traceback (most recent call last):
    ValueError: parallelism_config: there is no 'fdsp'. Did you mean 'fsdp'?
    """
    if config is None:
        return None
    if isinstance(config, Mapping):
        for name in cast("Mapping[str, Any]", config):
            if name in _NOT_HERE:
                raise ValueError(f"parallelism_config: {name!r} is not available: {_NOT_HERE[name]}")
        named = dict(cast("Mapping[str, Any]", config))
        _refuse_unknown("parallelism_config", {k: v for k, v in named.items() if k not in _KINDS}, ParallelismConfig)
        config = ParallelismConfig(**{name: _as_object(name, value) for name, value in named.items()})
    if not isinstance(config, ParallelismConfig):
        raise TypeError(f"parallelism_config must be a mapping such as {{'fsdp': {{}}}}; got {config!r}.")
    fsdp = config.fsdp if config.fsdp2 is None else config.fsdp2.as_fsdp()
    tp = config.tp if config.tp is not None and config.tp.tensor_parallel_degree > 1 else None
    return ParallelismConfig(fsdp=fsdp, tp=tp) if fsdp is not None or tp is not None else None


_KINDS: dict[str, type] = {"fsdp": FSDPConfig, "fsdp2": FSDP2Config, "tp": TPConfig}

_NOT_HERE = {
    "pp": "a pipeline of stages needs a model that is cut into them and a loop that schedules microbatches among them; "
    "divide weights by 'fsdp' and 'tp'.",
    "cp": "dividing sequences needs attention that passes keys and values around, which is the model's own; use "
    "sequence-parallel styles in the layer_plan of 'tp'.",
    "deepspeed": "DeepSpeed has an argument of its own: deepspeed_config.",
}

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "activation_checkpointing_reentrant": (
        (False, None),
        "recomputation is of the kind that is not re-entrant, which gives the same gradients; leave it out.",
    ),
    "te_checkpoint_wrapper": ((False,), "activation_checkpointing recomputes any block; leave it out."),
    "te_shard_fp8_weight": ((False,), "weights are gathered in 16 or 32 bits; leave it out."),
    "keep_low_precision_grads": (
        (False,),
        "gradients have the dtype of the weights, as optimizers expect; mixed_precision='PURE' adds them up in the "
        "short format.",
    ),
    "process_group": (
        (None,),
        "data_parallel_shard_degree and data_parallel_replicate_degree say who shares weights: the number of "
        "processes of a node and of nodes for 'node', 1 and -1 for 'self'.",
    ),
    "device_mesh": (
        (None,),
        "data_parallel_shard_degree and data_parallel_replicate_degree say what it is to be; FSDP2Config takes one.",
    ),
    "use_orig_params": ((True,), "parameters always keep their own shapes and names; leave it out."),
    "backward_prefetch": (
        ("BACKWARD_POST", "BACKWARD_PRE", "backward_post", "backward_pre"),
        "fully_shard always fetches the next block ahead; leave it out.",
    ),
}


def _as_object(name: str, value: Any) -> Any:
    """A part of the configuration as the object that it stands for."""
    kind = _KINDS[name]
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"parallelism_config[{name!r}] must be a mapping or a {kind.__name__}; got {value!r}.")
    values = dict(cast("Mapping[str, Any]", value))
    names = inspect.signature(kind).parameters
    _refuse_unknown(name, {key: entry for key, entry in values.items() if key not in names}, kind)
    return kind(**values)


def _refuse_unknown(name: str, unknown: Mapping[str, Any], kind: type) -> None:
    known = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for key in unknown:
        raise ValueError(f"{name}: there is no {key!r}.{did_you_mean(key, known)}")


def _count(name: str, value: Any, part: str = "fsdp") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{part}: {name} must be a whole number; got {value!r}.")
    return positive(f"{part}: {name}", value)
