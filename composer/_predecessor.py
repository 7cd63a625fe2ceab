"""MosaicML Composer in the same environment: it has the same import name, so only one of the two can work."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer._version import DISTRIBUTION

__all__ = ["predecessors", "warn_of_predecessors"]

_FOLDER = re.compile(r"(?P<name>mosaicml|composer)-(?P<version>\d[^-]*?)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)


def predecessors(path: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the folder, name and version of each installation of MosaicML Composer.

    The names of files tell; ``importlib.metadata`` would take longer than the rest of ``import composer``.

    Args:
        path: The folders to look into, such as ``sys.path``.

    >>> list(predecessors(["no/such/folder"]))
    []
    """
    for folder in dict.fromkeys(path):
        try:
            entries = os.listdir(folder or os.curdir)  # noqa: PTH208 - a Path for each of a thousand names takes longer
        except OSError:  # a zip file, or a folder that is not there
            continue
        for entry in entries:
            found = _FOLDER.fullmatch(entry)
            if found is None:
                continue
            name = found["name"].lower()
            # A package called composer may be another project, or this one from before it had its present name.
            if name == "mosaicml" or _is_by_mosaicml(Path(folder, entry)):
                yield folder, name, found["version"]


def warn_of_predecessors() -> None:
    """Say which packages to remove where MosaicML Composer is installed beside this one.

    One process of a machine says it, and no worker of a data loader.
    """
    workers = sys.modules.get("multiprocessing.process")
    if os.environ.get("LOCAL_RANK", "0") != "0" or (workers is not None and workers.parent_process() is not None):
        return
    found = list(predecessors(sys.path))
    if not found:
        return
    names = sorted({name for _, name, _ in found})
    remedy = f"pip uninstall {' '.join(names)}"
    ours = Path(__file__).resolve().parent.parent
    if any(Path(folder).resolve() == ours for folder, _, _ in found):
        # Both wrote files of the same names there, and pip removes them with either package.
        remedy += f", then install {DISTRIBUTION} again, since some of its files go with the other's"
    listed = " and ".join(f"{name} {version}" for _, name, version in found)
    warnings.warn(
        f"MosaicML Composer ({listed}) is installed beside {DISTRIBUTION}. Both are imported as 'composer', so that "
        f"either can hide files of the other. Remove it: {remedy}",
        stacklevel=3,
    )


def _is_by_mosaicml(folder: Path) -> bool:
    for name in ("METADATA", "PKG-INFO"):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        headers = text.partition("\n\n")[0]
        return re.search(r"^Author: MosaicML$", headers, re.MULTILINE) is not None
    return False
