"""The agent that starts and monitors the ranks of a node. Failures are kept for reports, and Ctrl-C ends its waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from composer.cli.launch_logs import print_message

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

__all__ = ["Agent", "InterruptibleRegistry", "interruptible"]

Result = TypeVar("Result")


# Seconds after which the user is told what the launcher waits for.
_PATIENCE = 10.0


class Agent(LocalElasticAgent):
    """Tells the log files of the ranks which ranks failed; torch raises an error only after the last attempt.

    Args:
        arguments: Of the base class.
        waiting: What the rendezvous waits for, in words; it is printed if that takes long.
        more: Of the base class.

    >>> issubclass(Agent, LocalElasticAgent)
    True
    """

    def __init__(self, *arguments: Any, waiting: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._waiting = waiting

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # pyright: ignore[reportIncompatibleVariableOverride] - has an untyped decorator
        result = cast("Any", super())._monitor_workers(worker_group)
        if result.failures:
            cast("Any", self)._logs_specs.failures = result.failures
        return result

    def _rendezvous(self, worker_group: WorkerGroup) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - has an untyped decorator
        join = cast("Any", super())._rendezvous
        interruptible(lambda: join(worker_group), self._waiting)


class InterruptibleRegistry:
    """Makes the rendezvous handlers of torch's registry; signals interrupt waiting for the host of the rendezvous.

    >>> from torch.distributed.elastic.rendezvous import RendezvousParameters
    >>> at = RendezvousParameters("static", "127.0.0.1:29500", "night", 1, 1, rank=0)
    >>> InterruptibleRegistry.get_rendezvous_handler(at).get_backend()
    'static'
    """

    @staticmethod
    def get_rendezvous_handler(parameters: RendezvousParameters) -> RendezvousHandler:
        """Return the handler for a backend.

        Args:
            parameters: The backend and its settings.
        """
        return interruptible(lambda: get_rendezvous_handler(parameters), f"waiting for {parameters.endpoint}")


def interruptible(call: Callable[[], Result], waiting: str) -> Result:
    """Call a function in another thread, so that signals interrupt waiting for it even if it does not return to Python.

    The stores of torch wait for other nodes in C++, where handlers of signals do not run. If a signal raises an error,
    the thread is left alone; it does not keep the process alive.

    Args:
        call: The function.
        waiting: What it waits for, in words; it is printed if that takes long.

    >>> interruptible(lambda: 2 + 2, "waiting for a sum")
    4
    """
    returned: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="rendezvous", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if thread.is_alive():
        print_message(waiting)
        thread.join()
    if raised:
        raise raised[0]
    return returned[0]
