"""Automatic microbatch size (``"auto"``): halve the size and retry the batch after running out of memory (OOM).

The protocol of a training batch:

0. Before the first batch, estimate the memory on fake tensors, and begin with the first size that fits on all ranks:
   the full batch, half of it, a quarter, ... Where nothing can be estimated, begin with the full batch.
1. Choose a microbatch size for the shape of the batch, and save the state that a forward pass changes: random
   generators, buffers such as BatchNorm statistics, training metrics.
2. Run the microbatches with gradient accumulation. If a rank runs out of memory, it frees what the failed attempt
   holds and issues the collectives that the other ranks still wait in (:meth:`.Strategy.finish_collectives`), so that
   none hangs.
3. All ranks all-reduce whether any of them failed, and whether a larger size remains to be tried.
4. If one failed: zero the gradients, restore the saved state, halve the size on all ranks, and go to 2. The result is
   the same as if the smaller size had been used from the start. OOM with a single sample raises an error.
5. Step the optimizers. Before the first step, which allocates optimizer states, and before a try of a larger size,
   model and optimizers are copied to the host; if the step itself runs out of memory, they are restored too. This is
   skipped with sharded weights (FSDP), and with an optimizer closure on multiple ranks: OOM in the step is an error.
6. After 64 batches without OOM, try twice the size; each failed try doubles that interval, up to 4096.

Modules:

- ``retry``: this protocol, and ``set_microbatch_size``, which enables it.
- ``first_size``: the estimate.
- ``batch_rollback``: save and restore what running a batch changes in addition to gradients.
- ``undo``: snapshot arbitrary objects, and restore their contents in place.
- ``composer.core.microbatch_sizes``: microbatch size cache by batch shape: halving, growing; saved in checkpoints.
- ``evaluation``: the same for evaluation batches, on each rank separately.
- ``out_of_memory``: recognize OOM errors of all libraries, and free the memory that a failed attempt holds.
"""

__all__: list[str] = []
