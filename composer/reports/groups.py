"""Choose which metrics of a run share a figure: losses, metrics by name, learning rates, throughput, gradient norms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Group", "groups"]

# More lines in one figure cannot be told apart.
_MOST = 10


@dataclass(frozen=True)
class Group:
    """Metrics in one figure.

    Attributes:
        title: Title of the figure.
        names: Names of the metrics.
        labels: What distinguishes each metric from the others, as in the legend.
        is_main: Whether it is shown at once, rather than on request.

    >>> Group("loss", ["loss/train/total"], ["train/total"], is_main=True).title
    'loss'
    """

    title: str
    names: Sequence[str]
    labels: Sequence[str]
    is_main: bool


def groups(names: Iterable[str]) -> list[Group]:
    """Return the figures of metrics, the most important first.

    Args:
        names: Names of the metrics.

    >>> names = [
    ...     "l2_norm/grad/global",
    ...     "metrics/eval/Accuracy",
    ...     "loss/train/total",
    ...     "metrics/train/Accuracy",
    ...     "mine",
    ... ]
    >>> [(group.title, group.labels) for group in groups(names)]
    [('loss', ['train/total']), ('Accuracy', ['eval', 'train']), ('gradient norm', ['global']), ('mine', ['mine'])]
    """
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for name in names:
        order, title, label = _place(name)
        found.setdefault((order, title), []).append((name, label))
    result: list[Group] = []
    for (order, title), pairs in sorted(found.items(), key=lambda one: one[0][0]):
        for start in range(0, len(pairs), _MOST):
            some = pairs[start : start + _MOST]
            part = f" ({start + 1} to {start + len(some)} of {len(pairs)})" if len(pairs) > _MOST else ""
            result.append(
                Group(
                    f"{title}{part}",
                    [name for name, _ in some],
                    [label for _, label in some],
                    is_main=order < _OTHER and not start,
                )
            )
    return result


_OTHER = 5


def _place(name: str) -> tuple[int, str, str]:
    """Return the order and title of the figure of a metric, and its label there."""
    first, _, rest = name.partition("/")
    if first == "loss" or (not rest and name.lower().endswith("loss")):
        return 0, "loss", rest or name
    if first == "metrics" and rest:
        label, slash, metric = rest.partition("/")
        return (1, metric, label) if slash else (1, rest, rest)
    if name.startswith("lr-"):
        return 2, "learning rate", name.removeprefix("lr-")
    if name in ("throughput/samples_per_sec", "throughput/tokens_per_sec", "throughput/batches_per_sec"):
        return 3, rest.replace("_per_sec", " per second"), rest
    if name in ("l2_norm/grad/global", "gradient_norm") or rest.startswith("gradient_norm"):
        return 4, "gradient norm", rest.rpartition("/")[2] or name
    above, slash, last = name.rpartition("/")
    return (_OTHER, above, last) if slash else (_OTHER + 1, name, name)
