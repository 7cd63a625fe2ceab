"""Fingerprints: what a run starts from and its checkpoints do not restore, so that a replay can tell if it changed.

A checkpoint has the weights at its step, but not those at the start of the run, and it has the indices of samples, but
not the data. A fingerprint has digests of a few elements of the initial weights and of the training data, and hashes
of the source files. The modules, in reading order:

- ``start``: take the fingerprint when training starts.
- ``sampled``: digests of a few elements of tensors, arrays and containers.
- ``data``: digests of the attributes of the training data, by path, without a call of its code.
- ``sources``: hashes of the source files of the program.
- ``compare``: how two fingerprints differ, and the errors and warnings of a replay.
"""

__all__: list[str] = []
