"""``composer estimate``: the memory that a training program needs, without the device and the processes.

The modules, in reading order:

- ``estimate``, ``grid``: the functions behind the command: for one configuration, and for a table of them.
- ``configuration``: what a trial changes about the program.
- ``measuring``: one trial for each configuration, and the search for the largest microbatch.
- ``remedies``: the changes that lower the memory.
- ``memory``, ``report``: what a trial measured, and the report.
- ``recorder``, ``run_facts``: what a trial does: trains a few steps without computing, and adds up the memory.
- ``skip_compute``: the dispatch mode that gives tensors their shapes and no values.
- ``placeholders``: tensors that are never written, of any size.
- ``communication``: all-gathered parameters and the buffers of collectives.
- ``kernel_memory``: what kernels of the CPU allocate while they run.
- ``cuda_operators``, ``autocast_rules``: let CPU tensors be treated as CUDA tensors.
- ``stages``: the stage and module of each allocation, and what it holds.
- ``allocator``: replays the log through the rules of torch's caching allocator.
- ``composer.memory``: the log of all memory, the kernels of CUDA, and operators whose shapes depend on values.
- ``devices``, ``roofline``: the memory and speed of devices, and the time that a step needs on one at least.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Device": "composer.estimation.devices",
        "Grid": "composer.estimation.grid",
        "Memory": "composer.estimation.memory",
        "Remedy": "composer.estimation.remedies",
        "Report": "composer.estimation.report",
        "estimate": "composer.estimation.estimate",
        "estimate_grid": "composer.estimation.grid",
        "find_device": "composer.estimation.devices",
    },
)
