"""Warn if MosaicML Composer is installed in the same environment: it has the same import name, ``composer``."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator

from composer._version import DISTRIBUTION

__all__ = ["predecessors", "warn_of_predecessors"]

# os.path instead of pathlib, whose import would take longer than the rest of this.
# ruff: noqa: PTH100, PTH118, PTH119, PTH120, PTH123, PTH208

_FOLDER = re.compile(r"(?P<name>mosaicml|composer)-(?P<version>\d[^-]*?)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)


def predecessors(path: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the folder, name and version of each installation of MosaicML Composer.

    Searches file names, since ``importlib.metadata`` would take longer than the rest of ``import composer``.

    Args:
        path: The folders to search.

    >>> list(predecessors(["no/such/folder"]))
    []
    """
    for folder in dict.fromkeys(path):
        try:
            entries = os.listdir(folder)
        except OSError:  # a zip file, or a folder that does not exist
            continue
        for entry in entries:
            found = _FOLDER.fullmatch(entry)
            if found is None:
                continue
            name = found["name"].lower()
            # A package called composer may be another project, or this one under its former name.
            if name == "mosaicml" or _is_by_mosaicml(os.path.join(folder, entry)):
                yield folder, name, found["version"]


def warn_of_predecessors() -> None:
    """Warn which packages to uninstall if MosaicML Composer is installed alongside this package.

    Only local rank 0 of each node warns, and DataLoader workers do not.
    """
    workers = sys.modules.get("multiprocessing.process")
    if os.environ.get("LOCAL_RANK", "0") != "0" or (workers is not None and workers.parent_process() is not None):
        return
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = list(predecessors([*_folders_of_packages(), ours]))
    if not found:
        return
    names = sorted({name for _, name, _ in found})
    if any(os.path.realpath(folder) == os.path.realpath(ours) for folder, _, _ in found):
        # Both wrote files of the same names, and pip removes them with either package.
        names.append(DISTRIBUTION)
        remedy = (
            f"Their files are mixed: remove both, pip uninstall {' '.join(names)}, and install {DISTRIBUTION} again"
        )
    else:
        remedy = f"Remove it: pip uninstall {' '.join(names)}"
    listed = " and ".join(f"{name} {version}" for _, name, version in found)
    warnings.warn(
        f"MosaicML Composer ({listed}) is installed alongside {DISTRIBUTION}. Both are imported as 'composer', so "
        f"either can hide files of the other. {remedy}",
        stacklevel=3,
    )


def _folders_of_packages() -> Iterator[str]:
    """Yield the folders on the path in which packages are installed; others may have any number of files."""
    for folder in sys.path:
        # Python skips entries that are not strings.
        is_text = isinstance(folder, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if is_text and os.path.basename(folder.rstrip("/\\")) in ("site-packages", "dist-packages"):
            yield folder


def _is_by_mosaicml(folder: str) -> bool:
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        return re.search(r"^Author: MosaicML$", text.partition("\n\n")[0], re.MULTILINE) is not None
    return False
