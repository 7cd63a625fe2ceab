"""Keep links or copies of files until they are uploaded, since the originals may be deleted at any time."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["Staging", "move_into_place"]


class Staging:
    """A folder of hard links to files, or of copies if hard links are not possible.

    Args:
        folder: Parent of that folder; None is the temporary folder of the system.

    >>> staging = Staging()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.pt").write_text("weights")
    ...     kept = staging.add(Path(folder, "model.pt"), "checkpoints/ep1.pt")
    >>> kept.name, kept.read_text()
    ('ep1.pt', 'weights')
    >>> staging.clear()
    >>> kept.exists()
    False
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._above = folder
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def add(self, path: Path, name: str) -> Path:
        """Keep a file, or a folder with all its files; return the path of the kept one.

        Args:
            path: The file or folder.
            name: Its last component becomes the name of the kept file.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        if self._folder is None:
            if self._above is not None:
                Path(self._above).mkdir(parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(prefix="composer-upload-", dir=self._above)
        self._count += 1
        kept = Path(self._folder.name, str(self._count), Path(name).name)
        kept.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, kept, copy_function=_link)
        else:
            _link(str(path), str(kept))
        return kept

    def remove(self, kept: Path) -> None:
        """Delete a kept file.

        Args:
            kept: What :meth:`add` returned.
        """
        shutil.rmtree(kept.parent, ignore_errors=True)

    def clear(self) -> None:
        """Delete all kept files."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()


def move_into_place(folder: Path, target: Path) -> None:
    """Move downloaded content to its destination: the file if there is only one, or a copy of the folder.

    Args:
        folder: The folder with the downloaded content; may be emptied.
        target: The destination; an existing file or folder is replaced.

    >>> with tempfile.TemporaryDirectory() as there:
    ...     Path(there, "fetched", "deep").mkdir(parents=True)
    ...     _ = Path(there, "fetched", "deep", "model.pt").write_text("weights")
    ...     move_into_place(Path(there, "fetched"), Path(there, "best.pt"))
    ...     Path(there, "best.pt").read_text()
    'weights'
    """
    if target.is_dir():
        shutil.rmtree(target)
    files = [path for path in folder.rglob("*") if path.is_file()]
    if len(files) == 1:
        files[0].replace(target)
    else:
        target.unlink(missing_ok=True)
        shutil.copytree(folder, target)


def _link(source: str, target: str) -> None:
    try:
        # A hard link to a symlink would follow later changes of the symlink.
        os.link(os.path.realpath(source), target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
