"""The agent that monitors the ranks of a node."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from composer.cli.launch_agent import Agent
from composer.cli.launch_logs import RankLogs


def test_failures_are_kept_for_the_report_of_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {1: ProcessFailure(1, 1001, -9, "")}
    results = [RunResult(WorkerState.HEALTHY), RunResult(WorkerState.FAILED, failures=failures)]
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda self, group: results.pop(0))
    agent, logs = Agent.__new__(Agent), RankLogs(None, None)
    agent._logs_specs = logs
    group: Any = None
    agent._monitor_workers(group)
    assert logs.failures == {}
    agent._monitor_workers(group)
    assert logs.failures == failures
    logs.close(keep=False)
