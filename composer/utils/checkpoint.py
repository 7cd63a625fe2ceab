"""Saving and loading, under the name that scripts import; see :mod:`composer.checkpoint`.

Some private names of the predecessor are here too, since scripts import them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import dist
from composer._lazy import attach
from composer.checkpoint import archive, folder_metadata, validation
from composer.checkpoint.filters import glob_filter
from composer.checkpoint.load import load_checkpoint, safe_torch_load
from composer.checkpoint.save import get_save_filename, save_checkpoint
from composer.core.file_names import PartialFilePath

if TYPE_CHECKING:
    from composer.checkpoint import dcp_readers

    DistCPObjectStoreReader = dcp_readers.DistCPObjectStoreReader
    FileSystemReaderWithValidation = dcp_readers.FileSystemReaderWithValidation

__all__ = [
    "PartialFilePath",
    "get_save_filename",
    "glob_filter",
    "load_checkpoint",
    "safe_torch_load",
    "save_checkpoint",
]

_COMPOSER_STATES_FILENAME = "composer_states.pt"
_TORCH_DISTRIBUTED_CHECKPOINTS_METADATA_FILENAME = folder_metadata.METADATA
_ensure_valid_checkpoint = validation.ensure_valid
_get_checkpoint_validation_function = validation.validation_function
_save_checkpoint = save_checkpoint
_torch_load_with_validation = safe_torch_load
_write_checkpoint_file = archive.write

# These need torch.distributed.checkpoint, which takes most of a second to import.
_readers = attach(
    __name__,
    {
        "DistCPObjectStoreReader": "composer.checkpoint.dcp_readers",
        "FileSystemReaderWithValidation": "composer.checkpoint.dcp_readers",
        "is_uri": "composer.utils._older_functions",
    },
)[0]


def __getattr__(name: str) -> Any:
    if name == "_TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME":  # known only when the process knows its rank
        return f"__{dist.get_global_rank()}_0.distcp"
    return _readers(name)
