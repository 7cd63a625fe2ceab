"""Process groups, ranks and collectives for distributed training.

Everything here works in a single process without any setup: the rank is 0, the world size is 1, and collectives return
their input. Start multiple ranks with ``composer -n 8 train.py`` or ``torchrun``, which set the environment variables
``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``NODE_RANK`` or ``GROUP_RANK``, ``MASTER_ADDR`` and
``MASTER_PORT``.

The modules, in reading order:

- ``ranks``: rank and world size, from the process group or the launcher's environment variables.
- ``setup``: :func:`initialize_dist`, and the distributed sampler.
- ``rendezvous``: how ranks find each other when a run starts (TCP store, network interface, keep-alive).
- ``collectives``: barrier, all-reduce, broadcast and all-gather.
- ``grid_collectives``: collectives of short tensors over many ranks in few messages.
- ``same_on_all_ranks``: check that a value is equal on all ranks.
- ``local_rank_zero``: run something once per node, such as a download.
- ``local_gpu``: the index of the GPU that belongs to this rank.
- ``dtensor``: helpers for sharded tensors (``DTensor``): local shards, full tensors, global norms.
- ``hang_report``: if a collective hangs, report which rank is missing, with its stack trace.
- ``simulation``: run as one rank of many without the others, for dry runs.
- ``_simulated_group``: the process group behind ``simulation``.
- ``_hang_watcher``: the background thread behind ``hang_report``.
- ``group_exit``: destroy the process group at exit without a deadlock.
"""

from __future__ import annotations

from composer.dist.collectives import (
    all_gather,
    all_gather_object,
    all_reduce,
    barrier,
    broadcast,
    broadcast_object_list,
    gather_object,
    largest,
)
from composer.dist.hang_report import MissingRankError, name_missing_ranks, note_step
from composer.dist.local_rank_zero import (
    busy_wait_for_local_rank_zero,
    get_node_signal_file_name,
    local_rank_zero_download_and_wait,
    run_local_rank_zero_first,
    write_signal_file,
)
from composer.dist.ranks import (
    MissingEnvironmentError,
    get_global_rank,
    get_local_rank,
    get_local_world_size,
    get_node_rank,
    get_world_size,
    is_available,
    is_initialized,
)
from composer.dist.same_on_all_ranks import check_same
from composer.dist.setup import get_sampler, initialize_dist

__all__ = [
    "MissingEnvironmentError",
    "MissingRankError",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "busy_wait_for_local_rank_zero",
    "check_same",
    "gather_object",
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_node_signal_file_name",
    "get_sampler",
    "get_world_size",
    "initialize_dist",
    "is_available",
    "is_initialized",
    "largest",
    "local_rank_zero_download_and_wait",
    "name_missing_ranks",
    "note_step",
    "run_local_rank_zero_first",
    "write_signal_file",
]
