"""Group runs that differ only in seed and name, by what their logs say of settings, code and hardware."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from composer._text import plural, word_set
from composer.history.history import History
from composer.reports.formatting import flat

__all__ = ["Run", "RunGroup", "facts_of", "group_runs", "read_groups", "seed_of", "settings_of"]

Run = str | Path | History

# What the trainer and methods log of every run, whatever its settings.
_ALWAYS: Final = re.compile(r"composer_version|num_nodes|num_\w+s_per_node|rank_zero_seed|\w+/num_\w+")
_NAMES: Final = frozenset({"run_name", "run_id"})
_OUTPUTS: Final = word_set("checkpoint checkpoints dir directory filename folder log logs out output remote save")
# Parts of the environment that may change what a run computes, or how fast.
_PARTS: Final = ("versions", "program", "accelerators", "machine")


@dataclass(frozen=True)
class RunGroup:
    """Runs that are repetitions of each other, or a single run.

    Attributes:
        name: Name of the group.
        runs: Its runs.
        is_given: Whether it was named by the caller, rather than found by what its runs logged.

    >>> RunGroup("night", (History("night"),)).is_given
    False
    """

    name: str
    runs: tuple[History, ...]
    is_given: bool = False

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)


def read_groups(runs: Sequence[Run], groups: Mapping[str, Sequence[Run]]) -> list[RunGroup]:
    """Read runs, and group those that are in no given group.

    Args:
        runs: Folders of runs, logs, or histories that were read before.
        groups: Runs by the name of their group; these come first.

    Raises:
        FileNotFoundError: A run does not exist, or has no log.
        TypeError: A run is none of these, or a group is a run rather than a list of runs.
        ValueError: A file is not a log, a run is given twice, has no metrics, or there are fewer than two runs.

    >>> import numpy as np
    >>> from composer.history import Series
    >>> loss = {"loss": Series("loss", np.array([0]), np.array([0.5]))}
    >>> [group.name for group in read_groups([History("a", loss)], {"mine": [History("b", loss)]})]
    ['mine', 'a']
    """
    for name, some in groups.items():
        if isinstance(some, str | Path | History):
            raise TypeError(f"groups must have lists of runs, but {name!r} has {some!r}; write [{some!r}].")
        if not some:
            raise ValueError(f"The group {name!r} has no runs. Name at least one.")
    given = [(name, tuple(map(_read, some))) for name, some in groups.items()]
    others = [_read(run) for run in runs]
    every = [*(run for _, some in given for run in some), *others]
    _check(every)
    renamed = dict(zip(map(id, every), _distinct(every), strict=True))
    found = [RunGroup(name, tuple(renamed[id(run)] for run in some), is_given=True) for name, some in given]
    return found + group_runs([renamed[id(run)] for run in others], [group.name for group in found])


def group_runs(runs: Sequence[History], taken: Iterable[str] = ()) -> list[RunGroup]:
    """Return the runs in groups, in the order of the first run of each.

    Two runs are in one group if all that they logged of hyperparameters, versions, program and hardware is equal, apart
    from seeds and names of runs. A run whose log has no hyperparameters is a group of its own.

    Args:
        runs: The runs.
        taken: Names of other groups.

    >>> runs = [History(f"a-seed{n}", hyperparameters={"lr": 0.1, "seed": n}) for n in (1, 2)]
    >>> runs.append(History("b", hyperparameters={"lr": 0.2, "seed": 1}))
    >>> [(group.name, len(group)) for group in group_runs(runs)]
    [('a', 2), ('b', 1)]
    """
    alike: dict[object, list[History]] = {}
    for number, run in enumerate(runs):
        settings = settings_of(run)
        is_known = any(not _ALWAYS.fullmatch(name) for name in settings)
        key = (*sorted(settings.items()), *sorted(facts_of(run).items())) if is_known else number
        alike.setdefault(key, []).append(run)
    names = set(taken)
    found: list[RunGroup] = []
    for some in alike.values():
        name = plain = _common_name([run.name for run in some])
        number = 2
        while name in names:
            name, number = f"{plain} ({number})", number + 1
        names.add(name)
        found.append(RunGroup(name, tuple(some)))
    return found


def settings_of(run: History) -> dict[str, str]:
    """Return the hyperparameters of a run by dotted name, without seeds, and without its name in folders it writes to.

    Args:
        run: The run.

    >>> settings_of(History("night", hyperparameters={"lr": 0.1, "seed": 3, "folder": "runs/night"}))
    {'lr': '0.1', 'folder': 'runs/{run_name}'}
    """
    own = {run.name, str(run.hyperparameters.get("run_name", run.name))}
    words = "|".join(re.escape(name) for name in sorted(own, key=len, reverse=True) if _is_word(name))
    # Only where the name is a word of its own: a run may be called "a".
    pattern = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-]|\.\d)") if words else None
    found = dict(flat(run.hyperparameters))
    if pattern is not None:
        found = {name: pattern.sub("{run_name}", text) if _is_output(name) else text for name, text in found.items()}
    return {name: text for name, text in found.items() if not _is_name_or_seed(name)}


def facts_of(run: History) -> dict[str, str]:
    """Return the versions, the program and the hardware of a run by dotted name.

    Args:
        run: The run.

    >>> facts_of(History("night", environment={"versions": {"torch": "2.13.0"}, "launcher": {"RANK": "0"}}))
    {'versions.torch': '2.13.0'}
    """
    return dict(flat({part: value for part, value in run.environment.items() if part in _PARTS}))


def seed_of(run: History) -> int | None:
    """Return the seed of a run; None if it was not logged.

    Args:
        run: The run.

    >>> seed_of(History("night", hyperparameters={"rank_zero_seed": 17}))
    17
    """
    for name in ("rank_zero_seed", "seed"):
        value: Any = run.hyperparameters.get(name)
        if isinstance(value, int):
            return value
    return None


def _is_output(name: str) -> bool:
    """Return whether a setting says where a run writes; elsewhere its name may be a value, such as "adam"."""
    return not _OUTPUTS.isdisjoint(re.split(r"[\W_]+", name.rpartition(".")[2].lower()))


def _is_word(name: str) -> bool:
    """Return whether the name of a run cannot be taken for the value of a setting: a run may be called "2"."""
    return re.search(r"[^\W\d_]", name) is not None and name.lower() not in ("true", "false", "none", "nan", "inf")


def _is_name_or_seed(name: str) -> bool:
    last = name.rpartition(".")[2].rpartition("/")[2]
    return last in _NAMES or "seed" in re.split(r"[\W_]+", last.lower())


def _read(run: Run) -> History:
    if not isinstance(run, str | Path | History):
        raise TypeError(f"A run must be its folder, its log or a History, but got {run!r}.")
    return run if isinstance(run, History) else History.read(run)


def _check(runs: Sequence[History]) -> None:
    """Raise if runs cannot be compared."""
    if len(runs) < 2:
        raise ValueError(f"A comparison takes at least two runs, but got {plural(len(runs), 'run')}.")
    seen: dict[object, History] = {}
    for run in runs:
        key = run.files[0].resolve() if run.files else id(run)
        if key in seen:
            where = str(run.files[0]) if run.files else run.name
            raise ValueError(f"The run {where!r} is given twice. Name each run once, alone or in one group.")
        seen[key] = run
        if not any(len(series) for series in run.series.values()):
            where = str(run.files[0]) if run.files else run.name
            raise ValueError(f"The run {where!r} has no metrics. Leave it out, or compare it when it has logged some.")


def _distinct(runs: Sequence[History]) -> list[History]:
    """Return the runs with names that differ: those that share one are called by the path of their log."""
    names = [run.name for run in runs]
    found: list[History] = []
    for number, run in enumerate(runs):
        name = run.name
        if names.count(name) > 1:
            name = str(run.files[0].parent / run.files[0].stem) if run.files else f"{name} ({number + 1})"
        found.append(_renamed(run, name))
    return found


def _renamed(run: History, name: str) -> History:
    """Return a run under another name; its own name stays among its settings."""
    if name == run.name:
        return run
    return dataclasses.replace(run, name=name, hyperparameters={"run_name": run.name, **run.hyperparameters})


def _common_name(names: Sequence[str]) -> str:
    """Return what the names of runs have in common, without what is left of a seed."""
    if len(names) == 1:
        return names[0]
    common = "".join(letters[0] for letters in itertools.takewhile(_alike, zip(*names, strict=False)))
    if any(name[len(common) : len(common) + 1].isdigit() for name in names):
        common = common.rstrip("0123456789")  # "seed1" of "seed10" and "seed12"
    common = re.sub(r"(?:[\W_]+|^)(?:seed|run|s|r)?[\W_]*$", "", common, flags=re.IGNORECASE)
    return common or f"{names[0]} and {plural(len(names) - 1, 'other')}"


def _alike(letters: Sequence[str]) -> bool:
    return len(set(letters)) == 1
