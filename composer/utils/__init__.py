"""Import paths of ``composer.utils`` in MosaicML Composer; each name is defined in the module for its subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from composer import dist as dist
    from composer._lazy import MissingConditionalImportError as MissingConditionalImportError
    from composer._lazy import import_object as import_object
    from composer.algorithms.utils.vision_datasets import add_vision_dataset_transform as add_vision_dataset_transform
    from composer.checkpoint.folder_conflicts import (
        ensure_folder_has_no_conflicting_files as ensure_folder_has_no_conflicting_files,
    )
    from composer.checkpoint.folder_conflicts import ensure_folder_is_empty as ensure_folder_is_empty
    from composer.checkpoint.latest_symlink import create_symlink_file as create_symlink_file
    from composer.checkpoint.latest_symlink import extract_path_from_symlink as extract_path_from_symlink
    from composer.checkpoint.load import load_checkpoint as load_checkpoint
    from composer.checkpoint.load import safe_torch_load as safe_torch_load
    from composer.checkpoint.save import get_save_filename as get_save_filename
    from composer.checkpoint.save import save_checkpoint as save_checkpoint
    from composer.core.eval_mode import model_eval_mode as model_eval_mode
    from composer.core.file_names import FORMAT_NAME_WITH_DIST_AND_TIME_TABLE as FORMAT_NAME_WITH_DIST_AND_TIME_TABLE
    from composer.core.file_names import FORMAT_NAME_WITH_DIST_TABLE as FORMAT_NAME_WITH_DIST_TABLE
    from composer.core.file_names import PartialFilePath as PartialFilePath
    from composer.core.file_names import format_name_with_dist as format_name_with_dist
    from composer.core.file_names import format_name_with_dist_and_time as format_name_with_dist_and_time
    from composer.core.file_names import partial_format as partial_format
    from composer.core.interval import create_interval_scheduler as create_interval_scheduler
    from composer.devices import get_device as get_device
    from composer.dist.rendezvous.loopback import get_free_tcp_port as get_free_tcp_port
    from composer.environment import configure_excepthook as configure_excepthook
    from composer.environment import disable_env_report as disable_env_report
    from composer.environment import enable_env_report as enable_env_report
    from composer.environment import get_composer_env_dict as get_composer_env_dict
    from composer.environment import is_hpu_installed as is_hpu_installed
    from composer.environment import is_notebook as is_notebook
    from composer.environment import is_xla_installed as is_xla_installed
    from composer.environment import print_env as print_env
    from composer.export import ExportFormat as ExportFormat
    from composer.export import Transform as Transform
    from composer.export import export_for_inference as export_for_inference
    from composer.export import export_with_logger as export_with_logger
    from composer.export import quantize_dynamic as quantize_dynamic
    from composer.loggers.remote_uploader_downloader import (
        maybe_create_remote_uploader_downloader_from_uri as maybe_create_remote_uploader_downloader_from_uri,
    )
    from composer.model_summary import model_summary as model_summary
    from composer.nested import convert_flat_dict_to_nested_dict as convert_flat_dict_to_nested_dict
    from composer.nested import convert_nested_dict_to_flat_dict as convert_nested_dict_to_flat_dict
    from composer.parallel.config import FSDP2Config as FSDP2Config
    from composer.parallel.config import FSDPConfig as FSDPConfig
    from composer.parallel.config import ParallelismConfig as ParallelismConfig
    from composer.parallel.config import ParallelismType as ParallelismType
    from composer.parallel.config import TPConfig as TPConfig
    from composer.parallel.fsdp import is_model_fsdp as is_model_fsdp
    from composer.precision import STR_TO_DTYPE as STR_TO_DTYPE
    from composer.storage.downloads import get_file as get_file
    from composer.storage.errors import ObjectStoreTransientError as ObjectStoreTransientError
    from composer.storage.libcloud_store import LibcloudObjectStore as LibcloudObjectStore
    from composer.storage.object_store import ObjectStore as ObjectStore
    from composer.storage.object_store import build_remote_backend as build_remote_backend
    from composer.storage.object_store import list_remote_objects as list_remote_objects
    from composer.storage.object_store import maybe_create_object_store_from_uri as maybe_create_object_store_from_uri
    from composer.storage.object_store import validate_credentials as validate_credentials
    from composer.storage.object_stores import GCSObjectStore as GCSObjectStore
    from composer.storage.object_stores import OCIObjectStore as OCIObjectStore
    from composer.storage.object_stores import S3ObjectStore as S3ObjectStore
    from composer.storage.object_stores import SFTPObjectStore as SFTPObjectStore
    from composer.storage.remote_uploader import RemoteFilesExistingCheckStatus as RemoteFilesExistingCheckStatus
    from composer.storage.remote_uploader import RemoteUploader as RemoteUploader
    from composer.storage.retrying import retry as retry
    from composer.storage.uris import parse_uri as parse_uri
    from composer.trainer.extract_hparams import extract_hparams as extract_hparams
    from composer.trees import batch_get as batch_get
    from composer.trees import batch_set as batch_set
    from composer.trees import ensure_tuple as ensure_tuple
    from composer.trees import map_collection as map_collection
    from composer.warnings import VersionedDeprecationWarning as VersionedDeprecationWarning

    # Import paths of MosaicML Composer; see composer._compat.
    auto_log_hparams: ModuleType
    batch_helpers: ModuleType
    checkpoint: ModuleType
    collect_env: ModuleType
    device: ModuleType
    file_helpers: ModuleType
    import_helpers: ModuleType
    inference: ModuleType
    iter_helpers: ModuleType
    misc: ModuleType
    module_surgery: ModuleType
    object_store: ModuleType
    parallelism: ModuleType
    remote_uploader: ModuleType
    reproducibility: ModuleType
    retrying: ModuleType
else:
    from composer._lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "ExportFormat": "composer.export",
            "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE": "composer.core.file_names",
            "FORMAT_NAME_WITH_DIST_TABLE": "composer.core.file_names",
            "FSDP2Config": "composer.parallel.config",
            "FSDPConfig": "composer.parallel.config",
            "GCSObjectStore": "composer.storage.object_stores",
            "LibcloudObjectStore": "composer.storage.libcloud_store",
            "MissingConditionalImportError": "composer._lazy",
            "OCIObjectStore": "composer.storage.object_stores",
            "ObjectStore": "composer.storage.object_store",
            "ObjectStoreTransientError": "composer.storage.errors",
            "ParallelismConfig": "composer.parallel.config",
            "ParallelismType": "composer.parallel.config",
            "PartialFilePath": "composer.core.file_names",
            "RemoteFilesExistingCheckStatus": "composer.storage.remote_uploader",
            "RemoteUploader": "composer.storage.remote_uploader",
            "S3ObjectStore": "composer.storage.object_stores",
            "SFTPObjectStore": "composer.storage.object_stores",
            "STR_TO_DTYPE": "composer.precision",
            "TPConfig": "composer.parallel.config",
            "Transform": "composer.export",
            "VersionedDeprecationWarning": "composer.warnings",
            "add_vision_dataset_transform": "composer.algorithms.utils.vision_datasets",
            "auto_log_hparams": "composer.utils.auto_log_hparams",
            "batch_get": "composer.trees",
            "batch_helpers": "composer.utils.batch_helpers",
            "batch_set": "composer.trees",
            "build_remote_backend": "composer.storage.object_store",
            "checkpoint": "composer.utils.checkpoint",
            "collect_env": "composer.utils.collect_env",
            "configure_excepthook": "composer.environment",
            "convert_flat_dict_to_nested_dict": "composer.nested",
            "convert_nested_dict_to_flat_dict": "composer.nested",
            "create_interval_scheduler": "composer.core.interval",
            "create_symlink_file": "composer.checkpoint.latest_symlink",
            "device": "composer.utils.device",
            "disable_env_report": "composer.environment",
            "dist": "composer.utils.dist",
            "enable_env_report": "composer.environment",
            "ensure_folder_has_no_conflicting_files": "composer.checkpoint.folder_conflicts",
            "ensure_folder_is_empty": "composer.checkpoint.folder_conflicts",
            "ensure_tuple": "composer.trees",
            "export_for_inference": "composer.export",
            "export_with_logger": "composer.export",
            "extract_hparams": "composer.trainer.extract_hparams",
            "extract_path_from_symlink": "composer.checkpoint.latest_symlink",
            "file_helpers": "composer.utils.file_helpers",
            "format_name_with_dist": "composer.core.file_names",
            "format_name_with_dist_and_time": "composer.core.file_names",
            "get_composer_env_dict": "composer.environment",
            "get_device": "composer.devices",
            "get_file": "composer.storage.downloads",
            "get_free_tcp_port": "composer.dist.rendezvous.loopback",
            "get_save_filename": "composer.checkpoint.save",
            "import_helpers": "composer.utils.import_helpers",
            "import_object": "composer._lazy",
            "inference": "composer.utils.inference",
            "is_hpu_installed": "composer.environment",
            "is_model_fsdp": "composer.parallel.fsdp",
            "is_notebook": "composer.environment",
            "is_xla_installed": "composer.environment",
            "iter_helpers": "composer.utils.iter_helpers",
            "list_remote_objects": "composer.storage.object_store",
            "load_checkpoint": "composer.checkpoint.load",
            "map_collection": "composer.trees",
            "maybe_create_object_store_from_uri": "composer.storage.object_store",
            "maybe_create_remote_uploader_downloader_from_uri": "composer.loggers.remote_uploader_downloader",
            "misc": "composer.utils.misc",
            "model_eval_mode": "composer.core.eval_mode",
            "model_summary": "composer.model_summary",
            "module_surgery": "composer.utils.module_surgery",
            "object_store": "composer.utils.object_store",
            "parallelism": "composer.utils.parallelism",
            "parse_uri": "composer.storage.uris",
            "partial_format": "composer.core.file_names",
            "print_env": "composer.environment",
            "quantize_dynamic": "composer.export",
            "remote_uploader": "composer.utils.remote_uploader",
            "reproducibility": "composer.utils.reproducibility",
            "retry": "composer.storage.retrying",
            "retrying": "composer.utils.retrying",
            "safe_torch_load": "composer.checkpoint.load",
            "save_checkpoint": "composer.checkpoint.save",
            "validate_credentials": "composer.storage.object_store",
        },
    )
    del attach
