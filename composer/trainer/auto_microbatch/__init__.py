"""Automatic microbatch size: train with as many samples at once as fit, and retry a batch after out of memory (OOM).

``retry`` tries a batch and halves the microbatch size after OOM, ``batch_rollback`` undoes what the failed attempt
changed, ``undo`` restores objects in place, ``sizes`` caches the sizes that fit, ``evaluation`` does the same for
evaluation batches, and ``out_of_memory`` recognizes OOM errors and frees what they hold.
"""

__all__: list[str] = []
