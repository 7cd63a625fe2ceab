"""``composer_validate_remote_path``: check that a URI can be read from this host, and list its files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from composer._secrets.masking import mask_text, secrets_in

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """List the files below a URI.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code: 1 if the URI cannot be read.

    >>> from composer.storage import Folder
    >>> Folder("memory://validated").write_text("run/ep1.pt", "weights")
    >>> main(["memory://validated/run"])
    run/ep1.pt
    0
    """
    parser = argparse.ArgumentParser(prog="composer_validate_remote_path", description="List the files below a URI.")
    parser.add_argument("uri", help="such as s3://bucket/run")
    uri = parser.parse_args(arguments).uri
    from composer.storage.object_store import list_remote_objects

    try:
        names = list_remote_objects(uri)
    except Exception as error:
        # Storage clients raise errors of many types; every one is the result of the check.
        reason = mask_text(error, secrets_in(uri))
        print(f"composer: {mask_text(uri)} cannot be read: {reason}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    for name in names:
        print(name)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
