"""Images of a run that is over: those on the page that it wrote, and PNG files in its folder."""

from __future__ import annotations

import base64
import binascii
import html
import itertools
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from composer.core.run_files import is_file_in
from composer.reports.logged import ReportImage

__all__ = ["newest", "page_images", "run_images"]

_MOST_BYTES: Final = 1_000_000
_MOST_IMAGES: Final = 64
_MOST_PIXELS: Final = 16_000_000
_MOST_FILES: Final = 5_000
_LARGEST_PAGE: Final = 32_000_000
# Where programs save pictures; elsewhere a folder may have a data set.
_FOLDERS: Final = ("figures", "images", "media", "pictures", "plots", "samples")
_STEP: Final = re.compile(r"(?:step|batch|iter|ba)[_=-]?([0-9]{1,15})(?![0-9])", re.IGNORECASE)
_HEADER: Final = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_ON_PAGE: Final = re.compile(
    r'<figure class="image"><img src="data:image/png;base64,([A-Za-z0-9+/=]+)" alt="([^"]*)">'
    r"<figcaption>[^<]*?(?:, step ([0-9,]{1,20}))?</figcaption>"
)


def run_images(folder: Path, started: float | None = None) -> list[ReportImage]:
    """Return the images of a run, oldest first: the newest ones, up to 1 MB.

    These are the images on ``report.html`` in the folder of its log, which :class:`.HTMLReport` wrote, and the PNG
    files in that folder and below its folders ``figures``, ``images``, ``media``, ``pictures``, ``plots`` and
    ``samples``. Links that lead out of the folder are not followed.

    Args:
        folder: The folder of the log.
        started: When the run began, in seconds since 1970; what is older is that of an earlier run. None if unknown.

    >>> run_images(tmp_path)
    []
    """
    page = folder / "report.html"
    files = itertools.islice(_files(folder), _MOST_FILES)
    dated = sorted((date, one) for one in files if (date := _modified(one)) is not None)
    dated = [(date, one) for date, one in dated if started is None or date >= started]
    saved = [image for _, path in dated[-_MOST_IMAGES:] if (image := _read(path, folder)) is not None]
    written = _modified(page) if is_file_in(folder, page) else None
    is_own = written is not None and (started is None or written >= started)
    known = {image.png for image in saved}
    return newest([*(one for one in (page_images(page) if is_own else ()) if one.png not in known), *saved])


def newest(images: Sequence[ReportImage]) -> list[ReportImage]:
    """Return the last images that have 1 MB together.

    Args:
        images: The images, oldest first.

    >>> newest([ReportImage("large", 0, bytes(2_000_000)), ReportImage("small", 1, b"")])
    [ReportImage(name='small', step=1, png=b'')]
    """
    sizes = itertools.accumulate(len(one.png) for one in reversed(images))
    number = sum(1 for size in sizes if size <= _MOST_BYTES)
    return list(images)[len(images) - number :]


def page_images(page: Path) -> list[ReportImage]:
    """Return the images on a page of a run, oldest first; none if it is another page.

    Args:
        page: The page, a file.

    >>> page = tmp_path / "report.html"
    >>> _ = page.write_text("another page")
    >>> page_images(page)
    []
    """
    try:
        if page.stat().st_size > _LARGEST_PAGE:
            return []
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: list[ReportImage] = []
    for encoded, name, step in _ON_PAGE.findall(text):
        try:
            png = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            continue
        if _is_shown(png):
            found.append(ReportImage(html.unescape(name), int(step.replace(",", "")) if step else None, png))
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield the PNG files of a run."""
    for level, folders, names in os.walk(folder):
        here = Path(level)
        if here == folder:
            folders[:] = sorted(name for name in folders if name.lower() in _FOLDERS)
        depth = len(here.relative_to(folder).parts)
        if depth >= 3:
            folders.clear()
        for name in sorted(names):
            if name.lower().endswith(".png") and is_file_in(folder, here / name):
                yield here / name


def _modified(path: Path) -> float | None:
    """Return when a file was written; None if it was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _read(path: Path, folder: Path) -> ReportImage | None:
    """Return the image of a file; None if a page has no room for it, or it is none."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        png = path.read_bytes()
    except OSError:
        return None
    if not _is_shown(png):
        return None
    step = _STEP.search(path.stem)
    return ReportImage(path.relative_to(folder).with_suffix("").as_posix(), int(step[1]) if step else None, png)


def _is_shown(png: bytes) -> bool:
    """Return whether an image is a PNG file of a size that a browser can show."""
    if len(png) < len(_HEADER) + 8 or not png.startswith(_HEADER):
        return False
    width, height = struct.unpack_from(">II", png, len(_HEADER))
    return 0 < width * height <= _MOST_PIXELS
