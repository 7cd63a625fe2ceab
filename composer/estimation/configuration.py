"""Configurations: what a trial of ``composer estimate`` changes about a program, as assignments."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from composer._numbers import whole_number
from composer._text import one_of

__all__ = ["STRATEGIES", "Configuration"]

STRATEGIES = ("single", "ddp", "fsdp", "hsdp", "tp")

# Processes of a node, as most clusters have: HSDP shards within a node, and replicates across nodes.
_NODE = 8
_LONGEST = 60
_UNSHARDED = ("parallelism_config=None", "fsdp_config=None", "deepspeed_config=None")


@dataclass(frozen=True)
class Configuration:
    """What a trial changes about a program.

    Args:
        processes: Number of processes.
        strategy: One of :data:`STRATEGIES`; empty for that of the program.
        microbatch: Number of samples in a microbatch; 0 for that of the program.
        eval_microbatch: Number of samples in a microbatch of evaluators; 0 for that of the program.
        precision: The precision; empty for that of the program.
        optimizer: Class name of another optimizer; empty for those of the program.
        fsdp: Settings of FSDP to add, such as ``(("activation_checkpointing", 2),)``.
        fsdp_argument: The argument of the program that has its FSDP settings; empty if it has none.
        changes: Further assignments.
        local_processes: Number of processes on each node; 0 for at most 8.

    Raises:
        ValueError: A value is not possible.

    >>> Configuration(microbatch=8).assignments()
    ['device_train_microbatch_size=8', 'grad_accum=None']
    >>> Configuration(fsdp=(("activation_checkpointing", 2),)).lines()
    ["parallelism_config={'fsdp': {'activation_checkpointing': 2}}"]
    """

    processes: int = 1
    strategy: str = ""
    microbatch: int = 0
    eval_microbatch: int = 0
    precision: str = ""
    optimizer: str = ""
    fsdp: tuple[tuple[str, Any], ...] = ()
    fsdp_argument: str = field(default="", compare=False)
    changes: tuple[str, ...] = ()
    local_processes: int = 0

    def __post_init__(self) -> None:
        whole_number("processes", self.processes, minimum=1)
        if self.strategy:
            one_of("strategy", self.strategy, STRATEGIES)
        if self.strategy == "single" and self.processes > 1:
            raise ValueError(
                f"strategy 'single' is for one process, but processes is {self.processes}; use 'ddp' or 'fsdp'."
            )
        if self.strategy not in ("", "single") and self.processes == 1:
            raise ValueError(f"strategy {self.strategy!r} needs several processes; set processes, such as 8.")
        if self.local_processes:
            whole_number("local_processes", self.local_processes, minimum=1)
        if self.strategy == "hsdp" and (self.processes % self.node or self.processes == self.node):
            raise ValueError(
                f"strategy 'hsdp' shards over the {self.node} processes of a node and replicates across nodes, so "
                f"processes must be a multiple of {self.node} above it; got {self.processes}. Use 'fsdp' for fewer."
            )
        if self.processes % self.node:
            raise ValueError(
                f"processes={self.processes} must be a multiple of the {self.node} processes of a node; "
                "pass another local_processes."
            )

    @property
    def node(self) -> int:
        """Number of processes on each node."""
        return self.local_processes or (_NODE if self.strategy == "hsdp" else min(_NODE, self.processes))

    @property
    def name(self) -> str:
        """A name for the trial; different for different configurations."""
        parts = [f"processes-{self.processes}"] if self.processes > 1 else []
        parts += [f"nodes-of-{self.local_processes}"] if self.local_processes else []
        parts += [self.strategy] if self.strategy else []
        parts += [f"microbatch-{self.microbatch}"] if self.microbatch else []
        parts += [f"evaluation-{self.eval_microbatch}"] if self.eval_microbatch else []
        parts += [self.precision] if self.precision else []
        parts += [self.optimizer] if self.optimizer else []
        parts += [f"{_SHORT.get(key, key)}-{value}" for key, value in self.fsdp]
        parts += [re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") for text in self.changes]
        name = "-".join(parts) or "program"
        if len(name) <= _LONGEST and not self.changes:
            return name
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:4]  # texts with other signs may look the same
        return f"{name[:_LONGEST]}-{digest}"

    def assignments(self) -> list[str]:
        """Return the changes of the arguments of the trainer."""
        changes = list(self.changes)
        if self.microbatch:
            changes += [f"device_train_microbatch_size={self.microbatch}", "grad_accum=None"]
        if self.precision:
            changes.append(f"precision={self.precision}")
        return [*changes, *self._sharding()]

    def lines(self) -> list[str]:
        """Return the arguments to write into the program, such as ``device_train_microbatch_size=8``."""
        written = [each for each in self.assignments() if not each.endswith("=None")]
        if self.eval_microbatch:
            written.append(f"Evaluator(..., device_eval_microbatch_size={self.eval_microbatch})")
        if self.optimizer:
            written.append(f"optimizers={self.optimizer}(model.parameters(), ...)")
        return written

    def with_fsdp(self, **settings: Any) -> Configuration:
        """Return this configuration with further settings of FSDP.

        Args:
            **settings: The settings, such as ``activation_checkpointing=True``.
        """
        return dataclasses.replace(self, fsdp=tuple({**dict(self.fsdp), **settings}.items()))

    def _sharding(self) -> list[str]:
        """Return the assignments for the strategy and the settings of FSDP."""
        settings = dict(self.fsdp)
        if self.strategy == "tp":  # the probe sets the degree
            return [f"parallelism_config.fsdp={settings}"] if settings else []
        if not self.strategy and self.fsdp_argument:
            return [f"{self.fsdp_argument}.{key}={value!r}" for key, value in settings.items()]
        if self.strategy in ("fsdp", "hsdp"):
            degrees = {
                "data_parallel_shard_degree": self.node,
                "data_parallel_replicate_degree": self.processes // self.node,
            }
            settings = {**(degrees if self.strategy == "hsdp" else {}), **settings}
            return [*_UNSHARDED[1:], f"parallelism_config={ {'fsdp': settings} }"]
        if not settings:
            return list(_UNSHARDED) if self.strategy else []
        if self.processes > 1 and "sharding_strategy" not in settings:  # as DDP
            settings = {"sharding_strategy": "NO_SHARD", **settings}
        return [*(_UNSHARDED[1:] if self.strategy else ()), f"parallelism_config={ {'fsdp': settings} }"]


_SHORT = {
    "activation_checkpointing": "checkpointing",
    "activation_cpu_offload": "offloading",
    "sharding_strategy": "sharding",
}
