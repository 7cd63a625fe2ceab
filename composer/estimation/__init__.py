"""``composer estimate``: the memory that a training program needs, without the device and the processes.

The modules, in reading order:

- ``estimate``: the function behind the command: one trial for each configuration, and the report.
- ``recorder``: what a trial does: trains a few steps without computing, and adds up the memory.
- ``skip_compute``: the dispatch mode that gives tensors their shapes and no values.
- ``placeholders``: tensors that are never written, of any size.
- ``communication``: all-gathered parameters and the buffers of collectives.
- ``unknown_shapes``: operators whose shapes depend on values.
- ``kernel_memory``: what kernels allocate while they run.
- ``allocations``, ``stages``: the log of all memory, with the stage and module that allocated it, and what it holds.
"""

from __future__ import annotations
