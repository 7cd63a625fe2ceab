"""``python -m composer`` is the command ``composer``."""

from __future__ import annotations

import sys

from composer.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
