"""``composer -n 8 train.py``: several processes, started and watched by :mod:`torch.distributed.launcher`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.cli import launch_rank
from composer.cli.launch_options import parse, parser
from composer.cli.launch_plan import Plan, make_plan

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

    from composer.cli.launch_logs import RankLogs

__all__ = ["launch", "main"]

_GRACE_PERIOD = 120
# What torch waits by default for an answer from where the nodes meet, in seconds.
_READ_TIMEOUT = 60.0
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# Passed on to the ranks. Those of schedulers (SIGUSR1, SIGUSR2) would otherwise end the launcher alone.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
# What torch logs of an end that the launcher itself tells.
_TOLD_OTHERWISE = ("failed (exitcode", "Sending process", "Closing process", "Received %s death signal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch a program as the options say.

    Args:
        arguments: What was written after the name of the command; None takes that of the process.

    Returns:
        The exit code: that of the rank that failed first, or 128 and the number of the signal.

    >>> main(["-n", "1", "-c", "true"])
    0
    """
    given = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        plan = make_plan(given, os.environ)
        if plan.rank is not None:
            _become_rank(plan, plan.rank)
    except (OSError, ValueError) as error:
        parser().error(str(error))
    try:
        return launch(plan, verbose=given.verbose)
    except (OSError, RuntimeError, ValueError) as error:
        # What the user can mend: a port that is taken, a node that did not come, a folder that cannot be written.
        print(f"composer: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    except KeyboardInterrupt:  # before there are ranks
        return 128 + signal.SIGINT


def launch(plan: Plan, verbose: bool = False) -> int:
    """Start the ranks of this node and wait for them.

    Args:
        plan: What is to be launched.
        verbose: Tell what the launcher does.

    Returns:
        The exit code.

    Raises:
        RuntimeError: The nodes did not find each other.
        ValueError: They did, and are not those that were announced; or a setting of the rendezvous is wrong.

    >>> launch(Plan(("true",), nproc=2))
    0
    """
    # torch takes two seconds to import; help and mistakes are answered before that.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    from composer.cli.launch_logs import RankLogs, report_failures, tell

    _set_up_logging(verbose)
    logs = RankLogs(plan.stdout, plan.stderr, plan.expected, when_met=functools.partial(_bound_silence, plan))
    # Isolated, so that nothing of the user's is imported twice.
    before_program = ("-I", "-S", str(Path(launch_rank.__file__)), str(os.getpid()))
    code = 1
    try:
        with _own_store_each_time(plan), _signals_as_before():
            elastic_launch(_config(plan, logs), sys.executable)(*before_program, *plan.command)
        code = 0
    except ChildFailedError as error:
        code = report_failures(error.failures, logs)
    except SignalException as error:
        tell(f"ended by {error.sigval.name}")
        code = 128 + error.sigval
    except RendezvousError as error:
        reason = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise RuntimeError(f"The nodes lost or did not find each other. {error}{reason}") from error
    finally:
        logs.close(keep=code != 0)
    return code


def _become_rank(plan: Plan, rank: dict[str, str]) -> None:
    """Replace this process by the one rank for which another launcher started it; return only by an error."""
    # SLURM and MPI may have bound it to cores of its own.
    bound = launch_rank.usable_cores() < (os.cpu_count() or 1)
    environ = {**rank, **launch_rank.rank_environment(int(rank["LOCAL_WORLD_SIZE"]), os.environ, bound)}
    if rank["LOCAL_RANK"] != "0":
        environ.update(launch_rank.log_files(plan.stdout, plan.stderr, rank))
    launch_rank.become(plan.command, environ)


def _config(plan: Plan, logs: RankLogs) -> LaunchConfig:
    from torch.distributed.launcher.api import LaunchConfig

    settings: dict[str, Any] = dict(plan.rdzv_conf)
    local_addr, backend = plan.local_addr, plan.backend
    if plan.nodes[1] == 1 and backend in ("static", "c10d"):
        # Those of torch listen on all interfaces, where strangers could read and set what ranks tell each other.
        from composer.cli.launch_rendezvous import BACKEND, register

        register()
        backend = BACKEND
    elif plan.backend == "static":
        settings["rank"] = plan.node_rank
    elif plan.nodes[1] > 1:
        local_addr = _complete_meeting(plan, settings)
    # A signal that is ignored stays so: that is what nohup is for.
    signals = [s for s in _SIGNALS if hasattr(signal, s) and signal.getsignal(getattr(signal, s)) != signal.SIG_IGN]
    newer: dict[str, Any] = {}
    if "shutdown_timeout" in {field.name for field in dataclasses.fields(LaunchConfig)}:
        newer["shutdown_timeout"] = _GRACE_PERIOD if plan.grace_period is None else plan.grace_period
    elif plan.grace_period is not None:
        raise ValueError("--grace_period needs a newer version of torch; that of this one is 30 seconds.")
    return LaunchConfig(
        min_nodes=plan.nodes[0],
        max_nodes=plan.nodes[1],
        nproc_per_node=plan.nproc,
        run_id=plan.run_id or "composer",
        role="rank",
        rdzv_endpoint=plan.endpoint,
        rdzv_backend=backend,
        rdzv_configs=settings,
        max_restarts=plan.max_restarts,
        monitor_interval=plan.monitor_interval,
        logs_specs=logs,
        local_addr=local_addr,
        signals_to_handle=",".join(signals),
        **newer,
    )


def _complete_meeting(plan: Plan, settings: dict[str, Any]) -> str | None:
    """Say that the nodes meet here, where torch would not see that, and return the address of this node.

    By itself torch goes by this machine's own name, which others may not know, and which need not be that of the
    network on which the nodes meet.

    Args:
        plan: Of nodes that a rendezvous numbers.
        settings: Of its backend; completed.
    """
    from composer.dist.rendezvous.interfaces import has_its_name, is_own_address, own_address

    host, _, port = plan.endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        return plan.local_addr
    # Where torch sees it, it also sees that another launcher of this machine was first.
    if plan.backend == "c10d" and not has_its_name(host) and is_own_address(host, int(port)):
        settings.setdefault("is_host", "true")
    return plan.local_addr or own_address(host)


def _bound_silence(plan: Plan) -> None:
    """Notice where the node on which all meet can no longer be reached, and do not wait for it for ever."""
    from composer.dist.rendezvous.keepalive import set_keepalive

    port = plan.endpoint.rpartition(":")[2]
    seconds = plan.rdzv_conf.get("read_timeout", "")
    if plan.nodes[1] > 1 and port.isdecimal():
        set_keepalive(int(port), float(seconds) if seconds.isdecimal() else _READ_TIMEOUT)


@contextlib.contextmanager
def _own_store_each_time(plan: Plan) -> Generator[None]:
    """Where ranks may start again, give each attempt a store and a port of its own.

    The store that torch's launcher otherwise shares with all attempts still holds the addresses of the first one, to
    which those of the second then try to connect (torch 2.13).
    """
    before = os.environ.get(_OWN_STORE)
    if plan.nodes[1] > 1 and (plan.max_restarts or plan.nodes[0] != plan.nodes[1]):
        os.environ[_OWN_STORE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_OWN_STORE, None)
        if before is not None:
            os.environ[_OWN_STORE] = before


@contextlib.contextmanager
def _signals_as_before() -> Generator[None]:
    """Take back what torch's launcher does to signals while it runs."""
    signums = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    handlers = [signal.getsignal(signum) for signum in signums]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in zip(signums, handlers, strict=True):
                signal.signal(signum, handler)


def _set_up_logging(verbose: bool) -> None:
    """Let torch's launcher tell everything, or only what this one does not tell."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        if verbose:
            logging.getLogger(name).setLevel(logging.INFO)
        else:
            logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_TOLD_OTHERWISE)


if __name__ == "__main__":
    sys.exit(main())
