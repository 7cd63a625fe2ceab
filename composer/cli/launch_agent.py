"""The agent that monitors the ranks of a node, which also keeps the failures that lead to a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup

__all__ = ["Agent"]


class Agent(LocalElasticAgent):
    """Tells the log files of the ranks which ranks failed; torch raises an error only after the last attempt.

    >>> issubclass(Agent, LocalElasticAgent)
    True
    """

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # pyright: ignore[reportIncompatibleVariableOverride] - has an untyped decorator
        result = cast("Any", super())._monitor_workers(worker_group)
        if result.failures:
            cast("Any", self)._logs_specs.failures = result.failures
        return result
