"""The command line: ``composer`` starts distributed training, and has the commands ``checkpoint`` and ``env``."""

from __future__ import annotations

__all__: list[str] = []
