"""Names that scripts import from here; each lives in the module that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer._lazy import MissingConditionalImportError as MissingConditionalImportError
    from composer.algorithms.utils.vision_datasets import add_vision_dataset_transform as add_vision_dataset_transform
    from composer.core.interval import create_interval_scheduler as create_interval_scheduler
    from composer.devices import get_device as get_device
    from composer.trees import batch_get as batch_get
    from composer.trees import batch_set as batch_set
    from composer.trees import ensure_tuple as ensure_tuple
    from composer.trees import map_collection as map_collection
    from composer.utils import dist as dist
    from composer.utils import misc as misc
    from composer.utils import module_surgery as module_surgery
    from composer.utils import reproducibility as reproducibility
    from composer.warnings import VersionedDeprecationWarning as VersionedDeprecationWarning
else:
    from composer._lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "MissingConditionalImportError": "composer._lazy",
            "VersionedDeprecationWarning": "composer.warnings",
            "add_vision_dataset_transform": "composer.algorithms.utils.vision_datasets",
            "batch_get": "composer.trees",
            "batch_set": "composer.trees",
            "create_interval_scheduler": "composer.core.interval",
            "dist": "composer.utils.dist",
            "ensure_tuple": "composer.trees",
            "get_device": "composer.devices",
            "map_collection": "composer.trees",
            "misc": "composer.utils.misc",
            "module_surgery": "composer.utils.module_surgery",
            "reproducibility": "composer.utils.reproducibility",
        },
    )
    del attach
