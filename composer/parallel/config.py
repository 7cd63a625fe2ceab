"""Configuration of sharding: ``parallelism_config`` for FSDP, HSDP and tensor parallelism, validated and normalized.

``parallelism_config={"fsdp": {...}, "tp": {...}}`` and the classes below are equivalent.
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

from composer._numbers import as_integer, positive
from composer._text import did_you_mean, one_of

__all__ = ["FSDP2Config", "FSDPConfig", "ParallelismConfig", "ParallelismType", "TPConfig", "as_parallelism_config"]

_SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


class ParallelismType(StrEnum):
    """The dimensions of the device mesh, from the outermost.

    >>> [dim.value for dim in ParallelismType]
    ['data_parallel_replicate', 'data_parallel_shard', 'tensor_parallel']
    """

    DATA_PARALLEL_REPLICATE = "data_parallel_replicate"
    DATA_PARALLEL_SHARD = "data_parallel_shard"
    TENSOR_PARALLEL = "tensor_parallel"


@dataclass(kw_only=True, repr=False)
class FSDPConfig:
    """Fully sharded data parallelism (FSDP2): each rank keeps a shard of every weight, gradient and optimizer state.

    The implementation is ``fully_shard``. The keys are those of FSDP1 configurations. Some are always on now; those
    that FSDP2 does not support raise an error with the reason.

    ======================================= ==========================================================================
    Always on, whatever the value           ``limit_all_gathers``, ``sync_module_states`` (weights are broadcast from
                                            rank 0), ``backward_prefetch`` (the next block is all-gathered while the
                                            gradients of the current one are computed)
    Rejected unless at the neutral value    ``use_orig_params=False``, ``keep_low_precision_grads``, ``process_group``,
                                            ``te_checkpoint_wrapper``, ``te_shard_fp8_weight``, ``device_mesh``,
                                            ``backward_prefetch="NONE"``, ``activation_checkpointing_reentrant=True``
    ======================================= ==========================================================================

    Args:
        activation_checkpointing: Whether to recompute the activations of blocks in the backward pass; a number n for
            every n-th block only, ``"selective"`` to save the outputs of matrix products and attention.
        activation_checkpointing_reentrant: False or None; only non-reentrant checkpointing is supported.
        activation_cpu_offload: Whether to keep activations in CPU memory until the backward pass.
        auto_wrap: Whether to all-gather blocks one by one, see :func:`.units_of`; False all-gathers the full model at
            once.
        te_checkpoint_wrapper: False.
        te_shard_fp8_weight: False.
        backward_prefetch: ``"BACKWARD_POST"`` or ``"BACKWARD_PRE"``.
        backward_prefetch_limit: Number of blocks to prefetch in the backward pass.
        cpu_offload: Whether to keep weights, gradients and optimizer states in CPU memory; requires an accelerator.
        data_parallel_shard_degree: Number of ranks over which weights are sharded; -1 for all remaining ranks.
        data_parallel_replicate_degree: Number of replicas, each sharded over a group of ranks (HSDP); -1 for all
            remaining ranks.
        device_mesh: None; the mesh is derived from the degrees.
        forward_prefetch: Whether to prefetch blocks in the forward pass, in the order in which the model lists them.
        forward_prefetch_limit: Number of blocks to prefetch in the forward pass.
        ignored_modules: Modules whose weights are not sharded.
        keep_low_precision_grads: False.
        limit_all_gathers: Either.
        load_monolith_rank0_only: Whether only rank 0 reads a single-file checkpoint.
        load_planner: A planner of ``torch.distributed.checkpoint``, for sharded checkpoints.
        mixed_precision: ``"DEFAULT"`` all-gathers weights in the training precision and reduces gradients in float32,
            ``"PURE"`` does both in the training precision, ``"FULL"`` both in the dtype of the weights. With the first
            two, normalizations (modules with "norm" in their class name) and embeddings are all-gathered in float32,
            except embeddings that share their weight with another layer. Or a mapping
            ``{"param_dtype": ..., "reduce_dtype": ...}``.
        process_group: None.
        reshard_after_forward: Whether to free blocks after their forward pass and all-gather them again for the
            backward pass; a number n reshards to groups of n ranks. None follows ``sharding_strategy``.
        save_planner: A planner of ``torch.distributed.checkpoint``, for sharded checkpoints.
        sharded_ckpt_prefix_dir: Name of the folder of a sharded checkpoint.
        sharding_strategy: ``"FULL_SHARD"``; ``"SHARD_GRAD_OP"``, which keeps blocks unsharded until the backward pass;
            ``"NO_SHARD"``, data parallelism; ``"HYBRID_SHARD"`` and ``"_HYBRID_SHARD_ZERO2"``, the first two within a
            node with a replica on each node, unless degrees are given.
        state_dict_type: ``"full"`` for single-file checkpoints, ``"sharded"`` for a folder with the shards of each
            rank.
        sync_module_states: Either.
        use_orig_params: True.
        verbose: Whether to log the FSDP units.

    Raises:
        ValueError: A value is not supported.

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
        for name, (neutral, reason) in _UNSUPPORTED_VALUES.items():
            if getattr(self, name) not in neutral:
                raise ValueError(f"fsdp: {name}={getattr(self, name)!r} is not available: {reason}")
        if isinstance(self.activation_checkpointing, str):
            one_of("fsdp: activation_checkpointing", self.activation_checkpointing, ("selective",))
        elif not isinstance(self.activation_checkpointing, bool):
            self.activation_checkpointing = _count("activation_checkpointing", self.activation_checkpointing)
        for name in ("backward_prefetch_limit", "forward_prefetch_limit"):
            setattr(self, name, _count(name, getattr(self, name)))
        self.data_parallel_shard_degree = _degree("data_parallel_shard_degree", self.data_parallel_shard_degree)
        if self.data_parallel_replicate_degree is not None:
            degree = self.data_parallel_replicate_degree
            self.data_parallel_replicate_degree = _degree("data_parallel_replicate_degree", degree)
        if isinstance(self.mixed_precision, str):
            named = self.mixed_precision.upper()
            self.mixed_precision = one_of("fsdp: mixed_precision", named, ("DEFAULT", "PURE", "FULL"))
        self.sharding_strategy = one_of("fsdp: sharding_strategy", self.sharding_strategy.upper(), _SHARDING_STRATEGIES)
        one_of("fsdp: state_dict_type", self.state_dict_type, ("full", "sharded"))

    @property
    def reshards(self) -> bool | int:
        """Whether blocks are resharded between forward and backward pass, or over how many ranks they stay sharded."""
        if self.reshard_after_forward is not None:
            return self.reshard_after_forward
        return self.sharding_strategy in ("FULL_SHARD", "HYBRID_SHARD")

    def __repr__(self) -> str:
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        changed = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
        return f"FSDPConfig({', '.join(changed)})"


@dataclass
class FSDP2Config:
    """:class:`FSDPConfig` with the argument names of 0.32's ``FSDP2Config``, for existing scripts.

    Args:
        device_mesh: The mesh over which weights are sharded, (shards) or (replicas, shards); None for all ranks.
        reshard_after_forward: Whether to free blocks after their forward pass.
        activation_checkpointing: See :class:`FSDPConfig`.
        activation_cpu_offload: See :class:`FSDPConfig`.
        state_dict_type: See :class:`FSDPConfig`.
        load_monolith_rank0_only: See :class:`FSDPConfig`.
        mixed_precision: See :class:`FSDPConfig`.
        verbose: See :class:`FSDPConfig`.

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
        """Create a configuration from a mapping.

        Args:
            attrs: Values by key.

        Raises:
            ValueError: A key is unknown.
        """
        _raise_if_unknown_key(
            "fsdp2", {name: value for name, value in attrs.items() if name not in cls.settable_attrs()}, cls
        )
        return cls(**attrs)

    def as_fsdp(self) -> FSDPConfig:
        """Return the equivalent :class:`FSDPConfig`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        mesh = values.pop("device_mesh")
        config = FSDPConfig(**values)
        config.device_mesh = mesh  # FSDPConfig(device_mesh=...) rejects it
        return config


@dataclass
class TPConfig:
    """Tensor parallelism: layers are sharded across ranks that compute on the same samples.

    Args:
        device_mesh: None; the mesh is derived from the degree.
        tensor_parallel_degree: Number of ranks, which are adjacent.
        layer_plan: The layers to shard: styles of ``torch.distributed.tensor.parallel`` by module names, which may
            contain ``*``, as for ``parallelize_module``. With sequence parallelism, weights that are applied to shards
            of a sequence must be in the plan, so that their gradients are summed.

    Raises:
        ValueError: The degree is not positive, or it is above 1 without a plan.

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
        self.tensor_parallel_degree = _count("tensor_parallel_degree", self.tensor_parallel_degree, "tp")
        if self.device_mesh is not None:
            raise ValueError("tp: device_mesh is derived from tensor_parallel_degree; set that instead.")
        if self.tensor_parallel_degree > 1 and not self.layer_plan:
            raise ValueError(
                f"tp: tensor_parallel_degree={self.tensor_parallel_degree} requires a layer_plan with the layers to "
                f"shard, such as {{'up': ColwiseParallel(), 'down': RowwiseParallel()}}."
            )


@dataclass
class ParallelismConfig:
    """How the model is sharded across ranks.

    Args:
        fsdp: Fully sharded data parallelism.
        tp: Tensor parallelism.
        fsdp2: Fully sharded data parallelism with FSDP2 keys; an alternative to ``fsdp``.

    Raises:
        ValueError: Both ``fsdp`` and ``fsdp2`` are given.

    >>> ParallelismConfig(fsdp=FSDPConfig())
    ParallelismConfig(fsdp=FSDPConfig(), tp=None, fsdp2=None)
    """

    fsdp: FSDPConfig | None = None
    tp: TPConfig | None = None
    fsdp2: FSDP2Config | None = None

    def __post_init__(self) -> None:
        if self.fsdp is not None and self.fsdp2 is not None:
            raise ValueError(
                "parallelism_config has both 'fsdp' and 'fsdp2', which are equivalent; leave one of them out."
            )


def as_parallelism_config(config: Any) -> ParallelismConfig | None:
    """Return a normalized configuration: ``fsdp2`` becomes ``fsdp``, a tensor parallel degree of 1 becomes None.

    Args:
        config: A :class:`ParallelismConfig`, a mapping with its names and mappings or objects as values, or None.

    Raises:
        TypeError: ``config`` has another type.
        ValueError: A key is unknown, or a value is not supported.

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
            if name in _UNSUPPORTED:
                raise ValueError(f"parallelism_config: {name!r} is not available: {_UNSUPPORTED[name]}")
        named = dict(cast("Mapping[str, Any]", config))
        unknown = {name: value for name, value in named.items() if name not in _CONFIG_TYPES}
        _raise_if_unknown_key("parallelism_config", unknown, ParallelismConfig)
        config = ParallelismConfig(**{name: _as_object(name, value) for name, value in named.items()})
    if not isinstance(config, ParallelismConfig):
        raise TypeError(f"parallelism_config must be a mapping such as {{'fsdp': {{}}}}; got {config!r}.")
    fsdp = config.fsdp if config.fsdp2 is None else config.fsdp2.as_fsdp()
    tp = config.tp if config.tp is not None and config.tp.tensor_parallel_degree > 1 else None
    return ParallelismConfig(fsdp=fsdp, tp=tp) if fsdp is not None or tp is not None else None


_CONFIG_TYPES: dict[str, type] = {"fsdp": FSDPConfig, "fsdp2": FSDP2Config, "tp": TPConfig}

_UNSUPPORTED = {
    "pp": "pipeline parallelism requires a model that is split into stages and a loop that schedules microbatches "
    "among them; shard weights with 'fsdp' and 'tp'.",
    "cp": "context parallelism requires the model's attention to exchange keys and values; use sequence-parallel "
    "styles in the layer_plan of 'tp'.",
    "deepspeed": "use the argument deepspeed_config.",
}

_UNSUPPORTED_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "activation_checkpointing_reentrant": (
        (False, None),
        "only non-reentrant checkpointing is supported, which gives the same gradients; leave it out.",
    ),
    "te_checkpoint_wrapper": ((False,), "activation_checkpointing works with any block; leave it out."),
    "te_shard_fp8_weight": ((False,), "weights are all-gathered in 16 or 32 bits; leave it out."),
    "keep_low_precision_grads": (
        (False,),
        "gradients have the dtype of the weights, as optimizers expect; mixed_precision='PURE' reduces them in low "
        "precision.",
    ),
    "process_group": (
        (None,),
        "use data_parallel_shard_degree and data_parallel_replicate_degree: for 'node', the number of ranks per node "
        "and of nodes; for 'self', 1 and -1.",
    ),
    "device_mesh": (
        (None,),
        "use data_parallel_shard_degree and data_parallel_replicate_degree, or FSDP2Config, which accepts a mesh.",
    ),
    "use_orig_params": ((True,), "parameters always keep their own shapes and names; leave it out."),
    "backward_prefetch": (
        ("BACKWARD_POST", "BACKWARD_PRE", "backward_post", "backward_pre"),
        "fully_shard always prefetches the next block; leave it out.",
    ),
}


def _as_object(name: str, value: Any) -> Any:
    """Return an entry of the configuration as an object of its class."""
    config_type = _CONFIG_TYPES[name]
    if value is None or isinstance(value, config_type):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"parallelism_config[{name!r}] must be a mapping or a {config_type.__name__}; got {value!r}.")
    values = dict(cast("Mapping[str, Any]", value))
    names = inspect.signature(config_type).parameters
    _raise_if_unknown_key(name, {key: entry for key, entry in values.items() if key not in names}, config_type)
    return config_type(**values)


def _raise_if_unknown_key(name: str, unknown: Mapping[str, Any], config_type: type) -> None:
    known = [p.name for p in inspect.signature(config_type).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for key in unknown:
        raise ValueError(f"{name}: there is no {key!r}.{did_you_mean(key, known)}")


def _count(name: str, value: Any, section: str = "fsdp") -> int:
    number = as_integer(value)
    if number is None:
        raise ValueError(f"{section}: {name} must be an integer; got {value!r}.")
    return positive(f"{section}: {name}", number)


def _degree(name: str, value: Any) -> int:
    """Return a number of ranks, or -1 for all remaining ones."""
    number = as_integer(value)
    if number is None or (number < 1 and number != -1):
        raise ValueError(f"fsdp: {name} must be a positive integer, or -1 for all remaining ranks; got {value!r}.")
    return number
