"""How ranks find each other when a run starts, and notice a lost connection.

``nodes`` (the rendezvous of several nodes), ``interfaces`` (which network interface leads to another node),
``loopback`` (TCP stores for a single node), ``ports`` (free TCP ports), ``keepalive`` (connection timeouts).
"""

__all__: list[str] = []
