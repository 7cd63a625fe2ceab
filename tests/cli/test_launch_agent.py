"""The agent that monitors the ranks of a node."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from composer.cli import launch_agent
from composer.cli.launch_agent import Agent, interruptible
from composer.cli.launch_logs import RankLogs
from tests.cli.nodes import LIMIT


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


def test_a_signal_interrupts_waiting_that_does_not_return_to_python(monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch_agent, "_PATIENCE", 0.01)
    released = threading.Event()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            interruptible(released.wait, "waiting for the other nodes")
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        released.set()
    assert capsys.readouterr().err == "composer: waiting for the other nodes\n"


def test_errors_of_the_rendezvous_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, "waiting")


@pytest.mark.parametrize("rendezvous", [("--node_rank", "0"), ("--node_rank", "1"), ("--rdzv_endpoint",)])
def test_CtrlC_ends_a_launcher_that_waits_for_other_nodes(rendezvous) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    if "--rdzv_endpoint" in rendezvous:
        arguments = [*rendezvous, f"127.0.0.1:{port}"]
    else:
        arguments = [*rendezvous, "--master_addr", "127.0.0.1", "--master_port", port]
    program = "from composer.cli import launch_agent, launcher; launch_agent._PATIENCE = 0.1; exit(launcher.main())"
    command = [sys.executable, "-c", program, "-n", "1", "--nnodes", "2", *arguments, "-c", "true"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("composer: waiting for ")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 128 + signal.SIGINT
        assert process.stderr.read().endswith("composer: stopped by SIGINT\n")
    finally:
        process.kill()
        process.communicate()
