"""The program that started a run, as a checkpoint records it, so that ``composer replay RUN`` can start it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

from composer._secrets.masking import mask_values

__all__ = ["program_of_process"]


def program_of_process() -> dict[str, Any] | None:
    """Return the program of this process in plain values; None in a notebook, a Python prompt or ``python -c``.

    ``kind`` is "script" or "module" (``python -m``), ``name`` the absolute path or the name of the module,
    ``arguments`` the command-line arguments with secrets replaced by ``***``, ``folder`` the working directory.

    >>> program = program_of_process()
    >>> program is None or sorted(program) == ["arguments", "folder", "kind", "name"]
    True
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = getattr(spec, "name", None)
    if isinstance(name, str) and name != "__main__":
        # A package is run through its __main__ module.
        kind, name = "module", name.removesuffix(".__main__")
    elif isinstance(file, str) and Path(file).is_file():
        kind, name = "script", str(Path(file).absolute())
    else:
        return None
    try:
        folder = str(Path.cwd())
    except OSError:  # the directory was deleted
        folder = ""
    arguments = [os.fspath(argument) for argument in sys.argv[1:]]
    return {"kind": kind, "name": name, "arguments": cast("list[str]", list(mask_values(arguments))), "folder": folder}
