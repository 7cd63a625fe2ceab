"""How the start of a replay differs from that of its run, and the errors and warnings about it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from composer._text import plural
from composer.trainer.fingerprint.data import NUMBER, SETTING, TEXT
from composer.trainer.fingerprint.sources import MAIN
from composer.warnings import ComposerWarning

__all__ = ["Difference", "RunChangedError", "differences", "report_differences", "warn_of_other_data"]

_MAX_NAMES = 3
_WIDTH = 8


class RunChangedError(ValueError):
    """A replay would not be that of the run: its initial weights or its data differ.

    >>> issubclass(RunChangedError, ValueError)
    True
    """


@dataclass(frozen=True)
class Difference:
    """Something that is not as in the run.

    Attributes:
        kind: "weights", "data" or "source".
        name: Name of the parameter, path of the attribute of the data, or name of the source file.
        text: What differs, without the name.
        is_certain: Whether it changes the training; a text or number of a custom class may have no effect.
        is_content: Whether it is about the elements of a tensor or container rather than about a setting.

    >>> str(Difference("data", "dataset.indices", "has other elements"))
    'dataset.indices has other elements'
    """

    kind: Literal["weights", "data", "source"]
    name: str
    text: str
    is_certain: bool = True
    is_content: bool = False

    def __str__(self) -> str:
        """Return a sentence without its period."""
        return f"{self.name} {self.text}"


def differences(
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    names: Sequence[str] = (),
    *,
    at: int = 0,
    compare_data: bool = True,
) -> list[Difference]:
    """Return how a fingerprint differs from that of the run.

    Weights are compared only if both are those before the same batch, data only if the run had it at the step.

    Args:
        expected: The fingerprint in a checkpoint of the run.
        found: That of the replay.
        names: Names of the parameters and buffers.
        at: Number of batches trained before the replay starts.
        compare_data: Whether to compare the data.

    >>> run = {"weights": {"batch": 0, "digests": "0" * 16}}
    >>> replay = {"weights": {"batch": 0, "digests": "0" * 8 + "1" * 8}}
    >>> [str(one) for one in differences(run, replay, ["weight", "bias"])]
    ['bias differs']
    """
    changed: list[Difference] = []
    ours, theirs = found.get("weights"), expected.get("weights")
    if ours is not None and theirs is not None and ours["batch"] == theirs["batch"] == at:
        changed += _weights(theirs["digests"], ours["digests"], names)
    ours, theirs = found.get("data"), expected.get("data")
    if compare_data and ours is not None and theirs is not None and theirs["batch"] <= at:
        changed += _data(theirs["parts"], ours["parts"])
    return changed + _sources(expected.get("sources", {}), found.get("sources", {}))


def _weights(expected: str, found: str, names: Sequence[str]) -> list[Difference]:
    if len(expected) != len(found):
        counts = [plural(len(each) // _WIDTH, "parameter or buffer") for each in (found, expected)]
        return [Difference("weights", "the model", f"has {counts[0]}, in the run {counts[1]}")]
    pairs = ((expected[at : at + _WIDTH], found[at : at + _WIDTH]) for at in range(0, len(found), _WIDTH))
    return [
        Difference("weights", names[index] if index < len(names) else f"tensor {index}", "differs")
        for index, (one, other) in enumerate(pairs)
        if one != other
    ]


def _data(expected: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]]) -> list[Difference]:
    changed: list[Difference] = []
    for path, (theirs, value) in expected.items():
        if path not in found:
            continue  # the object that had it is another one, or the program has changed
        ours, own = found[path]
        if (theirs, value) == (ours, own):
            continue
        is_filled_later = "None" in (value, own) or any(kind.endswith(" of 0") for kind in (ours, theirs))
        is_certain = not is_filled_later and not {ours, theirs} & {NUMBER, TEXT}
        is_content = False
        if ours in (NUMBER, SETTING, "object"):
            text = f"is {own}, in the run {value if theirs in (NUMBER, SETTING, 'object') else theirs}"
        elif ours != theirs:
            text = f"is {ours}, in the run {value if theirs in (NUMBER, SETTING, 'object') else theirs}"
        elif ours == TEXT:
            text = "is another text"
        else:
            text, is_content = f"({ours}) has other elements", True
        changed.append(Difference("data", path, text, is_certain, is_content))
    return changed


def _sources(expected: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]]) -> list[Difference]:
    present = {hashed for _, hashed in found.values()}
    changed: list[Difference] = []
    for module, (file, hashed) in expected.items():
        if hashed in present or module not in found:  # it may be imported under another name, or not at all
            continue
        now = found[module][0]
        name = file if module == MAIN or "." not in module else module
        text = "has changed" if now == file else f"is now {now}, with other content"
        changed.append(Difference("source", name, text, is_certain=False))
    return changed


def report_differences(changed: Sequence[Difference], start: str, *, raises: bool, advice: str) -> None:
    """Raise an error about what cannot be replayed, and warn of what may have an effect.

    Args:
        changed: The differences.
        start: Where training starts, "seed 17" or the path of a checkpoint.
        raises: Whether certain differences are errors; otherwise they are warnings.
        advice: How to replay the run in spite of other weights, part of the error.

    Raises:
        RunChangedError: The weights or the data differ.

    >>> report_differences(
    ...     [Difference("weights", "bias", "differs")], "seed 1", raises=True, advice="Use step 20."
    ... )
    Traceback (most recent call last):
    ...
    composer.trainer.fingerprint.compare.RunChangedError: ...
    """
    weights, sources = ([one for one in changed if one.kind == kind] for kind in ("weights", "source"))
    data, uncertain = (
        [one for one in changed if one.kind == "data" and one.is_certain == certain] for certain in (True, False)
    )
    told = _listed(sources)
    texts: list[str] = []
    if weights:
        texts.append(
            f"The initial weights are not those of the run, although training starts from {start}; different: "
            f"{_listed([one.name for one in weights])}. {_cause('the model', told)} {advice}"
        )
    if data:
        texts.append(
            f"The training data, which checkpoints do not contain, is not that of the run: {_listed(data)}. "
            f"{_cause('the data', told)}"
        )
    if texts and raises:
        raise RunChangedError(
            f"{' '.join(texts)} To go on with what there is now: --allow-changes, or allow_changes=True."
        )
    if sources:
        texts.append(f"The program has changed since the run: {told}. The replay is that of the program as it is now.")
    if uncertain:
        texts.append(f"The training data may not be that of the run: {_listed(uncertain)}.")
    for text in texts:
        warnings.warn(text, ComposerWarning, stacklevel=3)


def warn_of_other_data(changed: Sequence[Difference]) -> None:
    """Warn that a resumed run trains on other data than before.

    Args:
        changed: The differences.

    >>> warn_of_other_data([Difference("weights", "bias", "differs")])
    """
    data = [one for one in changed if one.is_content and one.is_certain]
    if data:
        text = (
            f"The resumed run trains on other data than before: {_listed(data)}. "
            f"{_cause('the data', _listed([one for one in changed if one.kind == 'source']))}"
        )
        warnings.warn(text, ComposerWarning, stacklevel=3)


def _cause(what: str, sources: str) -> str:
    """Return what has probably changed the model or the data, and the remedy."""
    if sources:
        return f"The program has changed since the run: {sources}. Restore it."
    return (
        f"The program has probably drawn random numbers for {what} before a seed was set. For the next run, call "
        f"torch.manual_seed before {what} is created."
    )


def _listed(changed: Sequence[Difference | str]) -> str:
    more = f", and {len(changed) - _MAX_NAMES} more" if len(changed) > _MAX_NAMES else ""
    return ", ".join(map(str, changed[:_MAX_NAMES])) + more
