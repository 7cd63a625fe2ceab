"""Write images as PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

__all__ = ["png_bytes"]

_COLOR_TYPES = {1: 0, 3: 2, 4: 6}


def png_bytes(image: Any) -> bytes:
    """Return an image as a PNG file.

    Args:
        image: Bytes, (H, W, C), where C is 1 (gray), 3 (RGB) or 4 (RGBA).

    Raises:
        ValueError: The shape or type is another one.

    >>> png_bytes(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'

    Specification: https://www.w3.org/TR/png-3/
    """
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[-1] not in _COLOR_TYPES or image.dtype != np.uint8 or not image.size:
        raise ValueError(f"image must be uint8 of shape (H, W, 1), (H, W, 3) or (H, W, 4); got {image.shape}.")
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # each unfiltered
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
