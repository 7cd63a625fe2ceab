"""Rendezvous: how ranks find each other when a run starts, and detect a lost connection.

- ``rendezvous``: wait for all ranks, and name those that are missing.
- ``loopback``: TCP stores for a single node, free TCP ports.
- ``interfaces``: the network interface that leads to other nodes.
- ``keepalive``: connection timeouts.
"""

__all__: list[str] = []
