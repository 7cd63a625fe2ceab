"""Log metrics that are arrays, such as confusion matrices, as tables and pictures."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from composer._plots import draw_matrix, figure_pixels
from composer.core.array_axes import ArrayAxes, is_array

if TYPE_CHECKING:
    from composer.core.logger import LoggerDestination

__all__ = ["ArrayLog", "ArrayTable", "array_tables", "matrix_picture"]

_MAX_COLUMNS, _MAX_ROWS = 256, 10_000


class ArrayTable(NamedTuple):
    """An array as a table.

    Attributes:
        name: Name of the table.
        columns: The column names.
        rows: One list for each row.
        matrix: The values if the array is a square matrix, (C, C), for a picture; else None.
    """

    name: str
    columns: list[str]
    rows: list[list[Any]]
    matrix: np.ndarray | None = None


class ArrayLog:
    """Keeps the newest value of each array metric, to log it as a table and picture when an epoch or evaluation ends.

    A training metric is computed at every step in which a logger is due; a table at each of them would be too many.

    >>> import torch
    >>> arrays = ArrayLog()
    >>> arrays.describe("metrics/eval/Recall", ArrayAxes(("cat", "dog")))
    >>> arrays.take({"metrics/eval/Recall": torch.tensor([0.5, 1.0]), "loss": 0.25}, step=8)
    {'loss': 0.25}
    """

    def __init__(self) -> None:
        self._axes: dict[str, ArrayAxes] = {}
        self._newest: dict[str, Any] = {}
        self._step = 0  # of the last record

    def describe(self, name: str, axes: ArrayAxes) -> None:
        """Expect an array.

        Args:
            name: Name of the metric.
            axes: What its rows and columns stand for.
        """
        self._axes[name] = axes

    def take(self, metrics: dict[str, Any], step: int) -> dict[str, Any]:
        """Keep the expected arrays among metrics, and return the other values.

        Args:
            metrics: Values by name.
            step: Number of batches trained before.
        """
        arrays = {name: value for name, value in metrics.items() if name in self._axes and is_array(value)}
        self._newest.update(arrays)
        self._step = step
        return {name: value for name, value in metrics.items() if name not in arrays}

    def log(self, destination: LoggerDestination, label: str = "") -> None:
        """Log the arrays that were kept since the last call.

        Args:
            destination: Receives tables, and pictures of square matrices if matplotlib is installed.
            label: Label of the data whose metrics to log; all by default.
        """
        names = [name for name in self._newest if not label or name.startswith(f"metrics/{label}/")]
        draws = bool(names) and importlib.util.find_spec("matplotlib") is not None
        # Trackers take nothing at an earlier step than what they have.
        step = self._step
        for name in names:
            axes, value = self._axes[name], self._newest.pop(name)
            for table in array_tables(name, value, axes):
                destination.log_table(table.columns, table.rows, table.name, step)
                if draws and table.matrix is not None:
                    picture = matrix_picture(table.name, table.matrix, axes)
                    destination.log_images([picture], f"{table.name}/picture", True, step, use_table=False)


def array_tables(name: str, value: Any, axes: ArrayAxes) -> Iterator[ArrayTable]:
    """Yield the tables that show an array metric.

    A vector has a row for each class, and a matrix a row and a column; an array of more dimensions has a row for each
    entry of the first. A matrix with more than 256 columns becomes a list of its largest entries. Several arrays, such
    as those of a ROC curve, become several tables.

    Args:
        name: Name of the metric.
        value: A tensor, an array, or a sequence of these.
        axes: What the rows and columns stand for.

    >>> import torch
    >>> axes = ArrayAxes(("cat", "dog"), "target", "predicted")
    >>> for table in array_tables("confusion", torch.tensor([[3, 1], [0, 2]]), axes):
    ...     print(table.columns, table.rows)
    ['target / predicted', 'cat', 'dog'] [['cat', 3, 1], ['dog', 0, 2]]
    """
    if isinstance(value, (list, tuple)) and any(is_array(part) for part in value):
        for number, part in enumerate(value):
            if is_array(part):
                yield from array_tables(f"{name}/{number}", part, axes)
        return
    if isinstance(value, Tensor):
        value = value.double() if value.is_floating_point() else value  # NumPy has no bfloat16
    array = np.asarray(value)
    labels = axes.labels(len(array))
    if array.ndim == 1:
        yield ArrayTable(name, ["class" if axes.classes else "index", "value"], _rows(labels, array[:, None]))
        return
    matrix = array if array.ndim == 2 and array.shape[0] == array.shape[1] else None
    flat = array.reshape(len(array), -1)
    indices = np.ndindex(array.shape[1:])
    columns = axes.labels(array.shape[1]) if array.ndim == 2 else [", ".join(map(str, index)) for index in indices]
    titles = [axes.rows or "row", axes.columns or "column"]
    if len(columns) > _MAX_COLUMNS:
        order = np.argsort(-np.nan_to_num(flat, nan=-np.inf), axis=None, kind="stable")[:_MAX_ROWS]
        at = zip(*np.unravel_index(order, flat.shape), strict=True)
        rows = [[labels[row], columns[column], flat[row, column].item()] for row, column in at]
        yield ArrayTable(name, [*titles, "value"], rows, matrix)
        return
    corner = " / ".join(titles)
    yield ArrayTable(
        name, [corner, *(f"{one} " if one == corner else one for one in columns)], _rows(labels, flat), matrix
    )


def matrix_picture(name: str, matrix: np.ndarray, axes: ArrayAxes) -> np.ndarray:
    """Return a heat map of a matrix as an image, bytes of shape (H, W, 3).

    Args:
        name: Its title.
        matrix: The values, (R, C).
        axes: What the rows and columns stand for.

    Raises:
        MissingConditionalImportError: matplotlib is not installed.

    >>> matrix_picture("confusion", np.eye(2), ArrayAxes()).shape[-1]
    3
    """
    labels = [axes.labels(size) for size in matrix.shape]
    with warnings.catch_warnings():
        # Letters that the font does not have are drawn as boxes; the table has them.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        return figure_pixels(draw_matrix(matrix, labels[0], labels[1], axes.rows, axes.columns, name))


def _rows(labels: list[str], values: np.ndarray) -> list[list[Any]]:
    return [[label, *row] for label, row in zip(labels, values.tolist(), strict=True)]
