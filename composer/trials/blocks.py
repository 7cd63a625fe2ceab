"""Blocks of steps that a variant of a run trains, and the seconds of a step of the whole run that follow from them.

A run consists of ordinary steps and of rarer ones: the first step of an epoch, with what ends the epoch before, and
those with an evaluation or a checkpoint. A block of a few steps has too many or none of these. The time of a step is
therefore averaged for each kind of step, and the kinds are weighted by how often the run has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["EPOCH", "ORDINARY", "Block", "kind_of", "seconds_per_step"]

ORDINARY = ""
EPOCH = "epoch"


@dataclass(frozen=True)
class Block:
    """Steps that were trained without a pause.

    Args:
        seconds: Seconds of each measured step.
        kinds: The kind of each measured step, see :func:`kind_of`.
        skipped: The kinds of the steps after the pause, which were not measured.
        total: Seconds of all steps together, with those that were not measured.

    >>> Block((0.1, 0.3), ("", "epoch"), ("",), 0.55).seconds
    (0.1, 0.3)
    """

    seconds: tuple[float, ...]
    kinds: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    total: float = 0.0

    def means(self) -> dict[str, float]:
        """Return the mean seconds of a step by its kind."""
        found: dict[str, list[float]] = {}
        for kind, seconds in zip(self.kinds, self.seconds, strict=True):
            found.setdefault(kind, []).append(seconds)
        return {kind: fmean(values) for kind, values in found.items()}


def kind_of(events: set[str]) -> str:
    """Return the kind of a step by what happened in it.

    Args:
        events: Of "epoch" (the end of an epoch, and the first step of the next one), "evaluation" and "saving".

    >>> kind_of({"evaluation", "epoch"}), kind_of(set())
    ('epoch+evaluation', '')
    """
    return "+".join(sorted(events)) or ORDINARY


def seconds_per_step(
    blocks: Mapping[str, Sequence[Block]], warmups: Sequence[Block] = (), batches: int | None = None
) -> dict[str, list[float]]:
    """Return the mean seconds of a step of the run, a number for each block, by variant.

    Blocks of whole epochs are averaged as they are. Elsewhere, a kind of which not every block has a step gets the mean
    over all blocks of the variant; a variant in which it never occurred gets the mean time that it adds in others.

    Args:
        blocks: The measured blocks by variant. All variants have the same kinds equally often.
        warmups: Further blocks to count the kinds by.
        batches: Number of batches of an epoch; None if unknown.

    >>> block = Block((1.0, 1.0, 5.0), ("", "", "epoch"))
    >>> round(seconds_per_step({"base": [block]}, batches=8)["base"][0], 3)  # (7 x 1 + 5) / 8
    1.5
    """
    every = [block for each in blocks.values() for block in each]
    if batches and all(len(block.seconds) % batches == 0 for block in every):
        return {name: [fmean(block.seconds) for block in own] for name, own in blocks.items()}
    frequencies = _frequencies([*every, *warmups], batches)
    overall = {name: _means(own) for name, own in blocks.items()}
    found: dict[str, list[float]] = {}
    for name, own in blocks.items():
        means = {kind: overall[name].get(kind, _elsewhere(kind, name, overall)) for kind in frequencies}
        in_every = set.intersection(*(set(block.kinds) for block in own)) if own else set[str]()
        found[name] = [
            sum(share * (each[kind] if kind in in_every else means[kind]) for kind, share in frequencies.items())
            for each in (block.means() for block in own)
        ]
    return found


def _elsewhere(kind: str, name: str, overall: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean seconds of a kind of step that a variant never had: its ordinary steps, and what others add."""
    added = [each[kind] - each.get(ORDINARY, 0.0) for each in overall.values() if kind in each]
    return overall[name].get(ORDINARY, 0.0) + (max(0.0, fmean(added)) if added else 0.0)


def _frequencies(blocks: Sequence[Block], batches: int | None) -> dict[str, float]:
    """Return how often steps of each kind occur; those of epochs are known if their length is."""
    counts = Counter(kind for block in blocks for kind in (*block.kinds, *block.skipped))
    total = sum(counts.values())
    if not total:
        return {}
    shares = {kind: number / total for kind, number in counts.items()}
    of_epochs = {kind for kind in shares if EPOCH in kind.split("+")}
    seen = sum(shares[kind] for kind in of_epochs)
    if not batches or not of_epochs or seen == 1:
        return shares
    known = 1 / batches
    return {
        kind: share * (known / seen if kind in of_epochs else (1 - known) / (1 - seen))
        for kind, share in shares.items()
    }


def _means(blocks: Sequence[Block]) -> dict[str, float]:
    """Return the mean seconds of a step by its kind, over several blocks."""
    seconds = tuple(value for block in blocks for value in block.seconds)
    return Block(seconds, tuple(kind for block in blocks for kind in block.kinds)).means()
