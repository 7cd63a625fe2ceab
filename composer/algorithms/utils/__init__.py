"""Building blocks of image augmentation: operations, conversions and dataset transforms."""

from __future__ import annotations

from composer.algorithms.utils.augmentation_common import image_as_type, map_pillow_function
from composer.algorithms.utils.augmentation_primitives import augmentation_sets

__all__ = ["augmentation_sets", "image_as_type", "map_pillow_function"]
