"""The rendezvous of a run on one node: a store on loopback, which no other machine can connect to."""

from __future__ import annotations

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from composer.dist.loopback import LOOPBACK, loopback_store

__all__ = ["BACKEND", "LoopbackRendezvous", "register"]

BACKEND = "composer-loopback"
"""Its name for torch's launcher."""

_TIMEOUT = 300.0  # seconds that a store waits for an answer; torch's own default


class LoopbackRendezvous(RendezvousHandler):
    """Gives the only node its rank and a store. Each attempt of a run that is restarted has a store of its own.

    Args:
        port: That stores listen on; 0 takes a free one each time.
        run_id: Name of the run.

    >>> rendezvous = LoopbackRendezvous(0, "night")
    >>> found = rendezvous.next_rendezvous()
    >>> found.rank, found.world_size, found.bootstrap_store_info.master_addr
    (0, 1, '127.0.0.1')
    >>> rendezvous.shutdown()
    True
    """

    def __init__(self, port: int, run_id: str) -> None:
        self._port, self._run_id = port, run_id
        self._store: TCPStore | None = None
        self._closed = False

    def get_backend(self) -> str:
        """Return the name of this kind of rendezvous."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the store of the launcher rather than one of rank 0."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Make a store for the next attempt, and give up that of the one before.

        Raises:
            RuntimeError: The port is taken.
        """
        self._store = None
        try:
            self._store = store = loopback_store(self._port, _TIMEOUT)
        except OSError as error:
            raise RuntimeError(
                f"port {self._port} of this node is taken ({error.strerror}), perhaps by an earlier run that still "
                f"lives. Leave --master_port and MASTER_PORT out, and a free one is found."
            ) from error
        return RendezvousInfo(PrefixStore(self._run_id, store), 0, 1, RendezvousStoreInfo(LOOPBACK, store.port))

    def is_closed(self) -> bool:
        """Return whether the run has ended."""
        return self._closed

    def set_closed(self) -> None:
        """Note that the run has ended."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Return how many nodes want to join: there is one only."""
        return 0

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Let go of the store."""
        self._closed, self._store = True, None
        return True


def register() -> None:
    """Let torch's launcher know of it.

    >>> register()
    >>> register()
    """
    rendezvous_handler_registry.register(BACKEND, _of_parameters)


def _of_parameters(parameters: RendezvousParameters) -> LoopbackRendezvous:
    port = parameters.endpoint.rpartition(":")[2]
    return LoopbackRendezvous(int(port) if port.isdecimal() else 0, parameters.run_id)
