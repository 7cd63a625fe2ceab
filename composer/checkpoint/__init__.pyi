"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.checkpoint.convert import convert_checkpoint
from composer.checkpoint.download import download_monolithic_checkpoint
from composer.checkpoint.file_format import DamagedCheckpointError, UnsafeCheckpointError
from composer.checkpoint.load import load_checkpoint, read_checkpoint
from composer.checkpoint.safetensors_files import read_safetensors, write_safetensors
from composer.checkpoint.save import save_checkpoint
from composer.checkpoint.state_dict import (
    get_metadata_state_dict,
    get_model_state_dict,
    get_optim_state_dict,
    get_resumption_state_dict,
)

__all__ = [
    "DamagedCheckpointError",
    "UnsafeCheckpointError",
    "convert_checkpoint",
    "download_monolithic_checkpoint",
    "get_metadata_state_dict",
    "get_model_state_dict",
    "get_optim_state_dict",
    "get_resumption_state_dict",
    "load_checkpoint",
    "read_checkpoint",
    "read_safetensors",
    "save_checkpoint",
    "write_safetensors",
]
