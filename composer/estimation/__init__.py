"""``composer estimate``: the memory that a training program needs, without the device and the processes.

The modules, in reading order:

- ``estimate``: the function behind the command: one trial for each configuration, and the report.
- ``recorder``: what a trial does: trains a few steps without computing, and adds up the memory.
- ``skip_compute``: the dispatch mode that gives tensors their shapes and no values.
- ``unknown_shapes``: operators whose shapes depend on values.
- ``kernel_memory``, ``cuda_kernel_memory``: what kernels allocate while they run.
- ``cuda_operators``, ``autocast_rules``: let CPU tensors be treated as CUDA tensors.
- ``allocations``, ``stages``: the log of all memory, with the stage and module that allocated it, and what it holds.
- ``allocator``: replays the log through the rules of torch's caching allocator.
- ``devices``, ``roofline``: known accelerators, and the time that a step needs on one at least.
"""

from __future__ import annotations
