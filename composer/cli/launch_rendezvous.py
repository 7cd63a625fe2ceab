"""Rendezvous for a single node: a TCP store on loopback, to which no other host can connect."""

from __future__ import annotations

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from composer.dist.rendezvous.loopback import LOOPBACK, loopback_store

__all__ = ["BACKEND", "LoopbackRendezvous", "register"]

BACKEND = "composer-loopback"
"""Name of the rendezvous backend in torch's launcher."""

_TIMEOUT = 300.0  # store timeout in seconds; the default of torch


class LoopbackRendezvous(RendezvousHandler):
    """Assigns rank 0 to the only node, with a new store for each restart of the run.

    Args:
        port: The port that stores listen on; 0 selects a free one each time.
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
        """Return the name of the backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the store of the launcher instead of one of rank 0."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Create a store for the next attempt, and release that of the previous one.

        Raises:
            RuntimeError: The port is in use.
        """
        self._store = None
        try:
            self._store = store = loopback_store(self._port, _TIMEOUT)
        except OSError as error:
            raise RuntimeError(
                f"port {self._port} of this node is in use ({error.strerror}), perhaps by an earlier run that has not "
                f"exited. Leave out --master_port and MASTER_PORT to use a free port."
            ) from error
        return RendezvousInfo(PrefixStore(self._run_id, store), 0, 1, RendezvousStoreInfo(LOOPBACK, store.port))

    def is_closed(self) -> bool:
        """Return whether the run has ended."""
        return self._closed

    def set_closed(self) -> None:
        """Record that the run has ended."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Return the number of nodes that wait to join, which is always 0."""
        return 0

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Release the store."""
        self._closed, self._store = True, None
        return True


def register() -> None:
    """Register the backend with torch's launcher.

    >>> register()
    >>> register()
    """
    rendezvous_handler_registry.register(BACKEND, _of_parameters)


def _of_parameters(parameters: RendezvousParameters) -> LoopbackRendezvous:
    port = parameters.endpoint.rpartition(":")[2]
    return LoopbackRendezvous(int(port) if port.isdecimal() else 0, parameters.run_id)
