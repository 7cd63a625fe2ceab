"""An in-memory store whose transfers fail on demand, at the URI ``faulty://bucket``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class HalfError(Exception):
    """Stands for an upload that ends in the middle without a word."""


class Faulty(MemoryFileSystem):
    """Takes what happens to uploads and downloads from lists, one entry each; an empty list is success."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False

    puts: ClassVar[list[BaseException | type[BaseException] | threading.Event | None]] = []
    gets: ClassVar[list[BaseException | type[BaseException] | None]] = []
    order: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("faulty://").strip("/")

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        fault = self.puts.pop(0) if self.puts else None
        if isinstance(fault, threading.Event):
            fault.wait(10)
        elif fault is HalfError:
            content = Path(lpath).read_bytes()
            self.pipe_file(rpath, content[: len(content) // 2])
            return
        elif fault is not None:
            raise fault
        super().put_file(lpath, rpath, **kwargs)
        self.order.append(rpath.rpartition("/")[2].removeprefix(".").partition(".tmp")[0].rpartition(".")[0])

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        fault = self.gets.pop(0) if self.gets else None
        if fault is HalfError:
            content = self.cat_file(rpath)
            Path(lpath).write_bytes(content[: len(content) // 2])
            return
        if fault is not None:
            raise fault
        super().get_file(rpath, lpath, **kwargs)


fsspec.register_implementation("faulty", Faulty)


def cleared() -> Iterator[type[Faulty]]:
    """Give the store without files and faults; the body of a fixture."""
    for part in (Faulty.store, Faulty.puts, Faulty.gets, Faulty.order):
        part.clear()
    Faulty.pseudo_dirs[:] = [""]
    yield Faulty
    Faulty.store.clear()
    assert not Faulty.puts, "faults that did not happen"
