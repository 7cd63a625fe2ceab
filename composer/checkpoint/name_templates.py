"""Match checkpoint names against a template such as ``sub/ep{epoch}-ba{batch}.pt``."""

from __future__ import annotations

import functools
import os
import posixpath
import re
import string
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

from composer.core.name_placeholders import PROCESS_KEYS, TIME_KEYS, with_run_name

__all__ = ["COUNTERS", "PARTIAL", "bind", "counters", "is_plain", "names_in", "partial_files", "pattern"]

COUNTERS = ("epoch", "batch", "sample", "token", "iteration", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
"""The placeholders for counters of training time, from the largest unit to the smallest."""

# Limited digits, since names may come from an untrusted source.
_COUNT = "[0-9]{1,20}"
_SECONDS = rf"{_COUNT}(?:\.{_COUNT})?(?:e[+-]?[0-9]{{1,3}})?"

_SPECIFICATION = re.compile(r"(?:(?P<fill>.)?(?P<align>[<>=^]))?(?P<sign>[+\- ])?z?#?(?P<zeros>0)?(?P<width>\d*)", re.S)
_WIDEST = 255

PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")
"""Matches the name of a file that is being written; the group is the name of the complete file."""


def bind(template: str, run_name: str) -> str:
    """Replace ``{run_name}`` in a template of names in a folder; other placeholders are kept.

    Args:
        template: The template.
        run_name: Name of the run.

    >>> bind("./{run_name}/ep{epoch}.pt", "night")
    'night/ep{epoch}.pt'
    """
    return posixpath.normpath(with_run_name(template, run_name))


@functools.lru_cache(maxsize=64)
def pattern(template: str) -> re.Pattern[str]:
    """Return a regular expression that matches the names of a template, with a group for each placeholder.

    Args:
        template: The template, or one path component of it.

    >>> pattern("ep{epoch}.pt").fullmatch("ep3.pt")["epoch"]
    '3'
    """
    parts: list[str] = []
    named: set[str] = set()
    for text, key, specification, _ in string.Formatter().parse(template):
        parts.append(re.escape(text))
        if not key:
            continue
        is_count = key in COUNTERS or key in PROCESS_KEYS[1:]
        value = _COUNT if is_count else _SECONDS if key in TIME_KEYS else "[^/]+"
        before, after = _padding(specification or "")
        parts.append(before + (rf"(?P={key})" if key in named else rf"(?P<{key}>{value})") + after)
        named.add(key)
    return re.compile("".join(parts))


def _padding(specification: str) -> tuple[str, str]:
    """Return what matches the padding before and after a number, which is outside of its digits unless it is zeros.

    Args:
        specification: A format specification, such as ``>5`` in ``{batch:>5}``.
    """
    found = _SPECIFICATION.match(specification)
    if found is None:
        return "", ""
    sign = r"\+?" if found["sign"] == "+" else " ?" if found["sign"] == " " else ""
    if not found["width"] or (found["zeros"] and not found["align"]):
        return sign, ""
    fill, align = found["fill"] or ("0" if found["zeros"] else " "), found["align"] or ">"
    padding = "" if fill in "0/" else rf"(?:{re.escape(fill)}){{0,{min(int(found['width']), _WIDEST)}}}"
    return (padding if align in ">=^" else "") + sign, (padding if align in "<^" else "")


def counters(name: str, template: str) -> tuple[int, ...]:
    """Return the counters in a checkpoint name, largest unit first; an empty tuple if the template does not match.

    Args:
        name: Name of the checkpoint, relative to its folder.
        template: The template.

    >>> counters("ba20-ep3.pt", "ba{batch}-ep{epoch}.pt")
    (3, 20)
    """
    match = pattern(template).fullmatch(name)
    if match is None:
        return ()
    return tuple(int(match[key]) for key in COUNTERS if key in match.groupdict())


def is_plain(name: str) -> bool:
    """Return whether a name stays inside its folder: it is relative, without ``..``, drive or URI scheme.

    Args:
        name: The name, with ``/`` as the separator.

    >>> is_plain("sub/ep1.pt"), is_plain("../ep1.pt"), is_plain("/ep1.pt"), is_plain("s3://bucket/ep1.pt")
    (True, False, False, False)
    """
    windows = PureWindowsPath(name)
    return not (windows.drive or windows.root or "\0" in name) and not {"", ".", ".."} & {
        *name.split("/"),
        *windows.parts,
    }


def names_in(folder: Path, template: str) -> list[str]:
    """Return the sorted names below a folder that match a template; no symbolic link is returned or followed.

    Args:
        folder: The folder; need not exist.
        template: The template; any path component may have placeholders.

    >>> (tmp_path / "sub").mkdir()
    >>> (tmp_path / "sub" / "ep3.pt").touch(), (tmp_path / "ep3.pt").touch()
    (None, None)
    >>> names_in(tmp_path, "sub/ep{epoch}.pt")
    ['sub/ep3.pt']
    """
    levels = [pattern(level) for level in template.split("/")]
    # A placeholder in two path components must have the same value in both.
    return [
        name for name, entry in _below(folder, levels) if pattern(template).fullmatch(name) if not entry.is_symlink()
    ]


def partial_files(folder: Path, template: str) -> list[Path]:
    """Return the temporary files, of names that match a template, that a killed process left.

    Args:
        folder: The folder; need not exist.
        template: The template.

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
    """Yield the names below a folder whose path components match, each with its directory entry."""
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
