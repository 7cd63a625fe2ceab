"""Save, load and resume from checkpoints: files, sharded folders, retention and remote uploads.

The modules, in reading order:

What is saved:
    contents: The table of the entries of a checkpoint; how each is read from the state and restored.
    data_position: The position in the training data.
    rank_values: Collects a value of each rank.
    program: The program that started the run.
    named_states: States of optimizers, schedulers, algorithms and callbacks by class name.
    replica_states: What differs between the replicas of low-communication training.
    optimizer_states, added_groups: The optimizer state by parameter name; groups added during training.
    metric_values: The last computed values of metrics.
    averaged_losses: The losses that the ranks average.
    plain_values: Converts state to plain values that ``torch.load(weights_only=True)`` reads.
    filters: Ignore keys: leave out entries by glob patterns.
    excluded_weights: Records which weights were left out.
    state_dict: State dicts of models and optimizers for custom training loops.
    state_methods: ``State.state_dict`` and ``State.load_state_dict``.

How a file is written:
    save: Collects the state and writes a checkpoint.
    async_writer: Writes checkpoints in a background thread.
    staging, host_memory: Copy device tensors to pinned host memory first.
    file_format: ``torch.save`` files, written atomically and verified by checksums.
    safetensors_files: Weights as safetensors.
    on_all_ranks: Runs a step on rank 0 or on all ranks, and raises on all ranks if one fails.

How sharded checkpoints (folders) are written and read:
    sharded_tensors: Unshards ``DTensor`` values to save them, and shards full tensors to load them.
    sharded_writer: Each rank writes its shards (``torch.distributed.checkpoint``).
    sharded_reader: Each rank reads the shards that it needs.
    folder_metadata, folder_tensors: Read ``.metadata`` and tensors without unpickling.
    swap: Swaps two directories atomically.

How a checkpoint is loaded:
    load: Reads a checkpoint and restores a run from it.
    entry_types, model_weights, recreate_algorithms: Check types, load weights, recreate algorithms.
    legacy_formats, legacy_torch_file: Older checkpoints.
    pickle_outline, pickle_tensors, pickle_nodes, torch_index, zip_layout: Verify a file before it is unpickled.
    record_reader, checksum, outline_values: Read the verified tensors by several threads.
    user_validation: Calls ``CHECKPOINT_VALIDATION_FUNCTION``.
    dcp_readers: Storage readers for ``torch.distributed.checkpoint.load``.
    download: Downloads a checkpoint for all ranks.
    convert, huggingface: Convert to safetensors, sharded folders and Hugging Face models.

How a run resumes, and which checkpoints it keeps:
    name_templates, ordering: Checkpoint names, and which is the newest.
    at_step: The newest checkpoint at or before a step.
    latest_symlink: The symlink to the newest checkpoint; its upload to loggers that store files.
    folder_conflicts: Raises if a folder belongs to another run.
    retention, saved_checkpoints: Which checkpoints to keep.
    removal: Deletes checkpoints that are no longer kept.

Where checkpoints are kept:
    local_folder: A local checkpoint folder.
    remote_folder: A checkpoint folder in an object store; uploads in the background.
    ledger_file: The ledger of the run's wall time beside the checkpoints.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "DamagedCheckpointError": "composer.checkpoint.file_format",
        "UnsafeCheckpointError": "composer.checkpoint.file_format",
        "convert_checkpoint": "composer.checkpoint.convert",
        "download_monolithic_checkpoint": "composer.checkpoint.download",
        "get_metadata_state_dict": "composer.checkpoint.state_dict",
        "get_model_state_dict": "composer.checkpoint.state_dict",
        "get_optim_state_dict": "composer.checkpoint.state_dict",
        "get_resumption_state_dict": "composer.checkpoint.state_dict",
        "load_checkpoint": "composer.checkpoint.load",
        "read_checkpoint": "composer.checkpoint.load",
        "read_safetensors": "composer.checkpoint.safetensors_files",
        "save_checkpoint": "composer.checkpoint.save",
        "write_safetensors": "composer.checkpoint.safetensors_files",
    },
)
