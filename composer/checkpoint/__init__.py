"""Saving and loading; what a checkpoint holds, and how its files are written."""

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
