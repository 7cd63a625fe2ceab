from __future__ import annotations

import io

import numpy as np
import pytest

from composer.reports.png import png_bytes


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (3, 2, 4)])
def test_another_reader_reads_the_same(shape: tuple[int, ...]) -> None:
    images = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    read = np.asarray(images.open(io.BytesIO(png_bytes(image))))
    np.testing.assert_array_equal(read.reshape(shape), image)


@pytest.mark.parametrize("image", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)])
def test_other_shapes_and_types(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="image must be uint8 of shape"):
        png_bytes(image)
