"""A fake terminal, and the text that it displays."""

from __future__ import annotations

import io
import re


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def screen(text: str) -> list[str]:
    """Return the final screen of a terminal, from erase line, move up, carriage return and newline only."""
    rows, row = [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if piece == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif piece == "\x1b[2K":
            rows[row] = ""
        elif piece.endswith("A") and piece.startswith("\x1b"):
            row -= int(piece[2:-1] or 1)
        elif not piece.startswith(("\x1b", "\r")):
            rows[row] += piece
    return [text.rstrip() for text in rows if text.strip()]


def bare(line: str) -> str:
    """Return a line without the graphical bar and with single spaces."""
    return " ".join(re.sub("[━╸╺]", " ", line).split())
