"""Match checkpoint names against a template such as ``sub/ep{epoch}-ba{batch}.pt``."""

from __future__ import annotations

import functools
import os
import posixpath
import re
import string
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

from composer.core._names import PROCESS_KEYS, TIME_KEYS, with_run_name

__all__ = ["COUNTERS", "PARTIAL", "bind", "counters", "is_plain", "names_in", "partial_files", "pattern"]

COUNTERS = ("epoch", "batch", "sample", "token", "iteration", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
"""The placeholders that count, the largest unit first."""

# No more digits than a count has, since names may be a stranger's.
_COUNT = "[0-9]{1,20}"
_SECONDS = rf"{_COUNT}(?:\.{_COUNT})?(?:e[+-]?[0-9]{{1,3}})?"

PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")
"""The name of a file that is being written; its group is the name that the file gets when it is complete."""


def bind(template: str, run_name: str) -> str:
    """Return a template of names below a folder for one run: ``{run_name}`` is replaced, other placeholders are left.

    Args:
        template: The name with placeholders.
        run_name: Name of the run.

    >>> bind("./{run_name}/ep{epoch}.pt", "night")
    'night/ep{epoch}.pt'
    """
    return posixpath.normpath(with_run_name(template, run_name))


@functools.lru_cache(maxsize=64)
def pattern(template: str) -> re.Pattern[str]:
    """Return a regular expression for the names that a template can have, with a group for each placeholder.

    Args:
        template: The name with placeholders, or one level of its folders.

    >>> pattern("ep{epoch}.pt").fullmatch("ep3.pt")["epoch"]
    '3'
    """
    parts: list[str] = []
    named: set[str] = set()
    for text, key, _, _ in string.Formatter().parse(template):
        parts.append(re.escape(text))
        if not key:
            continue
        is_count = key in COUNTERS or key in PROCESS_KEYS[1:]
        value = _COUNT if is_count else _SECONDS if key in TIME_KEYS else "[^/]+"
        parts.append(rf"(?P={key})" if key in named else rf"(?P<{key}>{value})")
        named.add(key)
    return re.compile("".join(parts))


def counters(name: str, template: str) -> tuple[int, ...]:
    """Return the counts in the name of a checkpoint, the largest unit first; none if the template does not match.

    Args:
        name: Of a checkpoint, relative to its folder.
        template: The name with placeholders.

    >>> counters("ba20-ep3.pt", "ba{batch}-ep{epoch}.pt")
    (3, 20)
    """
    match = pattern(template).fullmatch(name)
    if match is None:
        return ()
    return tuple(int(match[key]) for key in COUNTERS if key in match.groupdict())


def is_plain(name: str) -> bool:
    """Tell whether a name leads to something below its folder: it is relative, without ``..``, drive or scheme.

    Args:
        name: The name, with ``/`` between folders.

    >>> is_plain("sub/ep1.pt"), is_plain("../ep1.pt"), is_plain("/ep1.pt"), is_plain("s3://bucket/ep1.pt")
    (True, False, False, False)
    """
    windows = PureWindowsPath(name)
    return not (windows.drive or windows.root or "\0" in name) and not {"", ".", ".."} & {
        *name.split("/"),
        *windows.parts,
    }


def names_in(folder: Path, template: str) -> list[str]:
    """Return the names below a folder that match a template, in order; no symbolic link is returned or followed.

    Args:
        folder: The folder; may be absent.
        template: The name with placeholders; its folders may have some too.

    >>> (tmp_path / "sub").mkdir()
    >>> (tmp_path / "sub" / "ep3.pt").touch(), (tmp_path / "ep3.pt").touch()
    (None, None)
    >>> names_in(tmp_path, "sub/ep{epoch}.pt")
    ['sub/ep3.pt']
    """
    levels = [pattern(level) for level in template.split("/")]
    # A placeholder that is in two levels has the same value in both.
    return [
        name for name, entry in _below(folder, levels) if pattern(template).fullmatch(name) if not entry.is_symlink()
    ]


def partial_files(folder: Path, template: str) -> list[Path]:
    """Return what was left of writing files of a template, as a killed process leaves it.

    Args:
        folder: The folder; may be absent.
        template: The name with placeholders.

    >>> (tmp_path / ".ep3.pt.0123abcd.tmp").touch()
    >>> [path.name for path in partial_files(tmp_path, "ep{epoch}.pt")]
    ['.ep3.pt.0123abcd.tmp']
    """
    levels = [*map(pattern, template.split("/")[:-1]), PARTIAL]
    found: list[Path] = []
    for name, entry in _below(folder, levels):
        head, slash, tail = name.rpartition("/")
        match = PARTIAL.fullmatch(tail)
        if match is not None and pattern(template).fullmatch(f"{head}{slash}{match[1]}"):
            found.append(Path(entry))
    return found


def _below(folder: Path, levels: list[re.Pattern[str]], above: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Names below a folder, each level of which matches, and what is there."""
    first, *rest = levels
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not first.fullmatch(entry.name):
            continue
        if not rest:
            yield above + entry.name, entry
        elif entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry), rest, f"{above}{entry.name}/")
