"""ArrayAxes: what the rows and columns of a logged array stand for, such as the classes of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
from torch import Tensor

__all__ = ["ArrayAxes", "is_array"]


class ArrayAxes(NamedTuple):
    """What the axes of a logged array stand for.

    Attributes:
        classes: Names of the classes, in the order of rows and columns; empty if unknown.
        rows: What the rows are, such as "target"; empty if unknown.
        columns: What the columns are, such as "predicted"; empty if unknown.

    >>> ArrayAxes(("cat", "dog"), "target", "predicted").labels(2), ArrayAxes(("cat", "dog")).labels(3)
    (['cat', 'dog'], ['0', '1', '2'])
    """

    classes: tuple[str, ...] = ()
    rows: str = ""
    columns: str = ""

    def labels(self, size: int) -> list[str]:
        """Return different names for the entries of an axis: those of the classes if there are as many, or numbers.

        Args:
            size: Number of entries.
        """
        if len(self.classes) != size:
            return [str(index) for index in range(size)]
        names: dict[str, None] = {}
        for index, name in enumerate(self.classes):
            while name in names:
                name = f"{name} ({index})"
            names[name] = None
        return list(names)


def is_array(value: Any) -> TypeGuard[Tensor | np.ndarray | Sequence[Any]]:
    """Return whether a metric value is one array or several, rather than a number; does not synchronize.

    Args:
        value: The value.

    >>> import torch
    >>> [
    ...     is_array(value)
    ...     for value in (torch.eye(2), (torch.ones(2), torch.ones(3)), torch.ones(1), 0.5, "text", [])
    ... ]
    [True, True, False, False, False, False]
    """
    if isinstance(value, Tensor):
        return value.numel() > 1
    if isinstance(value, np.ndarray):
        return value.size > 1
    parts = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    numeric = all(isinstance(part, (Tensor, np.ndarray, np.generic, int, float, list, tuple)) for part in parts)
    return bool(parts) and numeric
