"""An in-memory file system, ``vault://user:password@host/path``, whose errors contain the full URI."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Vault(MemoryFileSystem):
    """Keeps files by host and path; refuses what a test says."""

    protocol = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    refused: ClassVar[set[str]] = set()
    login: ClassVar[str] = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        rest = path.removeprefix("vault://")
        login, at, place = rest.rpartition("@")
        if at:
            cls.login = login
        return "/" + place.strip("/")

    def _refuse(self, what: str, path: str) -> None:
        if what in self.refused:
            raise PermissionError(
                f"{what} vault://{self.login}@{path.lstrip('/')} is refused: {self.login.split(':')[1]}"
            )

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        if not rpath.rpartition("/")[2].startswith(("..composer-", ".composer-")):
            self._refuse("put", rpath)
        super().put_file(lpath, rpath, **kwargs)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().info(path, **kwargs)
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "No such file", f"vault://{self.login}@{path.lstrip('/')}") from error


fsspec.register_implementation("vault", Vault)
