"""What a model allocates: the log of allocations, and passes of a model without computation.

- ``allocations``: the log: the size, begin and end of each allocation.
- ``fake_passes``: the memory of forward and backward passes of a live model, by fake tensors.
- ``cached_tensors``: remove fake tensors that such a pass left in caches.
- ``unknown_shapes``: operators whose shapes, or values, depend on values.
- ``cuda_kernel_memory``: what CUDA kernels allocate while they run.
"""

__all__: list[str] = []
