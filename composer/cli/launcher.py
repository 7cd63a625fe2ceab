"""``composer -n 8 train.py``: start and monitor multiple ranks with :mod:`torch.distributed.launcher`."""

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
# torch's default read timeout of the rendezvous, in seconds.
_READ_TIMEOUT = 60.0
_SEPARATE_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# Forwarded to the ranks. Signals of schedulers (SIGUSR1, SIGUSR2) would otherwise kill only the launcher.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
# torch's log messages about exits that this launcher reports itself.
_REDUNDANT_MESSAGES = ("failed (exitcode", "Sending process", "Closing process", "Received %s death signal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch a program.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code: that of the rank that failed first, or 128 plus the signal number.

    >>> main(["-n", "1", "-c", "true"])
    0
    """
    given = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        plan = make_plan(given, os.environ)
        if plan.rank is not None:
            _exec_rank(plan, plan.rank)
    except (OSError, ValueError) as error:
        parser().error(str(error))
    try:
        return launch(plan, verbose=given.verbose)
    except (OSError, RuntimeError, ValueError) as error:
        # Errors that the user can fix: a port in use, a missing node, a folder that is not writable.
        print(f"composer: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    except KeyboardInterrupt:  # before ranks have started
        print("composer: stopped by SIGINT", file=sys.stderr)  # noqa: T201 - this is a program
        return 128 + signal.SIGINT


def launch(plan: Plan, verbose: bool = False) -> int:
    """Start the ranks of this node and wait for them.

    Args:
        plan: The launch plan.
        verbose: Log what the launcher does.

    Returns:
        The exit code.

    Raises:
        RuntimeError: The rendezvous failed.
        ValueError: The nodes are not those that were expected, or a rendezvous setting is wrong.

    >>> launch(Plan(("true",), nproc=2))
    0
    """
    # torch takes two seconds to import; help and usage errors do not wait for it.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher import api

    from composer.cli.launch_agent import Agent, InterruptibleRegistry
    from composer.cli.launch_logs import RankLogs, print_message, report_failures

    # elastic_launch() has no arguments for these.
    waiting = f"waiting for the other nodes at {plan.endpoint}"
    api.LocalElasticAgent = functools.partial(Agent, waiting=waiting)  # pyright: ignore[reportPrivateImportUsage]
    api.rdzv_registry = InterruptibleRegistry  # pyright: ignore[reportPrivateImportUsage]
    _set_up_logging(verbose)
    logs = RankLogs(
        plan.stdout, plan.stderr, plan.expected, on_rendezvous=functools.partial(_set_connection_timeout, plan)
    )
    # Isolated mode, so that user code (sitecustomize and the like) is not imported twice.
    before_program = ("-I", "-S", str(Path(launch_rank.__file__)), str(os.getpid()))
    code = 1
    try:
        with _separate_store_per_attempt(plan), _restore_signals():
            api.elastic_launch(_config(plan, logs), sys.executable)(*before_program, *plan.command)
        code = 0
    except ChildFailedError as error:
        code = report_failures(error.failures, logs)
    except SignalException as error:
        print_message(f"stopped by {error.sigval.name}")
        code = 128 + error.sigval
    except RendezvousError as error:
        reason = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise RuntimeError(f"The rendezvous of the nodes failed or was lost. {error}{reason}") from error
    finally:
        logs.close(keep=code != 0)
    return code


def _exec_rank(plan: Plan, rank: dict[str, str]) -> None:
    """Replace this process with the rank for which another launcher started it; return only by raising an error."""
    # SLURM and MPI may have bound this process to a subset of the cores.
    bound = launch_rank.usable_cores() < (os.cpu_count() or 1)
    environ = {**rank, **launch_rank.rank_environment(int(rank["LOCAL_WORLD_SIZE"]), os.environ, bound)}
    if rank["LOCAL_RANK"] != "0":
        environ.update(launch_rank.log_files(plan.stdout, plan.stderr, rank))
    launch_rank.exec_program(plan.command, environ)


def _config(plan: Plan, logs: RankLogs) -> LaunchConfig:
    from torch.distributed.launcher.api import LaunchConfig

    settings: dict[str, Any] = dict(plan.rdzv_conf)
    local_addr, backend = plan.local_addr, plan.backend
    if plan.nodes[1] == 1 and backend in ("static", "c10d"):
        # torch's backends listen on all interfaces, where other hosts could read and set keys of the store.
        from composer.cli.launch_rendezvous import BACKEND, register

        register()
        backend = BACKEND
    elif plan.backend == "static":
        settings["rank"] = plan.node_rank
    elif plan.nodes[1] > 1:
        local_addr = _complete_rendezvous(plan, settings)
    # Keep ignored signals ignored, as nohup requires.
    signals = [s for s in _SIGNALS if hasattr(signal, s) and signal.getsignal(getattr(signal, s)) != signal.SIG_IGN]
    newer: dict[str, Any] = {}
    if "shutdown_timeout" in {field.name for field in dataclasses.fields(LaunchConfig)}:
        newer["shutdown_timeout"] = _GRACE_PERIOD if plan.grace_period is None else plan.grace_period
    elif plan.grace_period is not None:
        raise ValueError("--grace_period requires a newer version of torch; this version always uses 30 seconds.")
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


def _complete_rendezvous(plan: Plan, settings: dict[str, Any]) -> str | None:
    """Set ``is_host`` if this node hosts the rendezvous and torch would not detect it; return this node's address.

    By default torch uses the host's name, which other nodes may not be able to resolve, or which may belong to another
    network than the rendezvous.

    Args:
        plan: A plan whose node ranks are assigned by the rendezvous.
        settings: Settings of the rendezvous backend, which are completed.
    """
    from composer.dist.rendezvous.interfaces import is_local_address, resolves_to_this_host, source_address

    host, _, port = plan.endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        return plan.local_addr
    # If torch detects it, it also detects that another launcher on this host was first.
    if plan.backend == "c10d" and not resolves_to_this_host(host) and is_local_address(host, int(port)):
        settings.setdefault("is_host", "true")
    return plan.local_addr or source_address(host)


def _set_connection_timeout(plan: Plan) -> None:
    """Set a keep-alive timeout on the connection to the rendezvous host, so that a lost node does not cause a hang."""
    from composer.dist.rendezvous.keepalive import set_keepalive

    port = plan.endpoint.rpartition(":")[2]
    seconds = plan.rdzv_conf.get("read_timeout", "")
    if plan.nodes[1] > 1 and port.isdecimal():
        set_keepalive(int(port), float(seconds) if seconds.isdecimal() else _READ_TIMEOUT)


@contextlib.contextmanager
def _separate_store_per_attempt(plan: Plan) -> Generator[None]:
    """Use a separate store and port for each attempt if ranks may be restarted.

    By default all attempts share the store of torch's launcher, which still holds the addresses of the first attempt,
    to which ranks of the second one then try to connect (torch 2.13).
    """
    before = os.environ.get(_SEPARATE_STORE)
    if plan.nodes[1] > 1 and (plan.max_restarts or plan.nodes[0] != plan.nodes[1]):
        os.environ[_SEPARATE_STORE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SEPARATE_STORE, None)
        if before is not None:
            os.environ[_SEPARATE_STORE] = before


@contextlib.contextmanager
def _restore_signals() -> Generator[None]:
    """Restore the signal handlers that torch's launcher replaces."""
    signums = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    handlers = [signal.getsignal(signum) for signum in signums]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in zip(signums, handlers, strict=True):
                signal.signal(signum, handler)


def _set_up_logging(verbose: bool) -> None:
    """Make torch's launcher log everything, or only what this launcher does not report itself."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        if verbose:
            logging.getLogger(name).setLevel(logging.INFO)
        else:
            logging.getLogger(name).addFilter(_is_not_redundant)


def _is_not_redundant(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_REDUNDANT_MESSAGES)


if __name__ == "__main__":
    sys.exit(main())
