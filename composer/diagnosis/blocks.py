"""Blocks of steps that a variant of a run trains, and the seconds of a step of the whole run that follow from them.

A run consists of ordinary steps and of rarer ones: the last and the first step of an epoch, and those with an
evaluation or a checkpoint. A block of a few steps has too many or none of these. The time of a step is therefore
averaged for each kind of step, and the kinds are weighted by how often the run has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["EPOCH_KINDS", "ORDINARY", "Block", "kind_of", "seconds_per_step"]

ORDINARY = ""
# What happens once an epoch: its end with the begin of the next one, and the wait for its first batch.
EPOCH_KINDS = ("epoch", "first")


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
        events: Of "epoch" (it is the last one of an epoch), "first" (of an epoch), "evaluation" and "saving".

    >>> kind_of({"evaluation", "epoch"}), kind_of(set())
    ('epoch+evaluation', '')
    """
    return "+".join(sorted(events)) or ORDINARY


def seconds_per_step(
    blocks: Mapping[str, Sequence[Block]], warmups: Sequence[Block] = (), batches: int | None = None
) -> dict[str, list[float]]:
    """Return the mean seconds of a step of the run, a number for each block, by variant.

    A kind of which not every block has a step gets the mean over all blocks of the variant; a variant in which it never
    occurred gets the mean additional time that it took in others.

    Args:
        blocks: The measured blocks by variant. All variants have the same kinds equally often.
        warmups: Further blocks to count the kinds by.
        batches: Number of batches of an epoch; None if unknown.

    >>> long = Block((1.0, 1.0, 5.0), ("", "", "epoch"))
    >>> seconds_per_step({"base": [long]}, batches=8)  # (7 x 1 + 5) / 8
    {'base': [1.5]}
    """
    every = [block for each in blocks.values() for block in each]
    frequencies = _frequencies([*every, *warmups], batches)
    pooled = _means(every)
    found: dict[str, list[float]] = {}
    for name, own in blocks.items():
        overall = _means(own)
        ordinary = overall.get(ORDINARY)
        for kind in frequencies:
            if kind not in overall:
                extra = pooled.get(kind, 0.0) - pooled.get(ORDINARY, 0.0)
                overall[kind] = (ordinary or 0.0) + max(0.0, extra)
        in_every = set.intersection(*(set(block.kinds) for block in own)) if own else set()
        means = [block.means() for block in own]
        found[name] = [
            sum(share * (each[kind] if kind in in_every else overall[kind]) for kind, share in frequencies.items())
            for each in means
        ]
    return found


def _frequencies(blocks: Sequence[Block], batches: int | None) -> dict[str, float]:
    """Return how often steps of each kind occur; those of epochs are known if their length is."""
    counts = Counter(kind for block in blocks for kind in (*block.kinds, *block.skipped))
    total = sum(counts.values())
    if not total:
        return {}
    shares = {kind: number / total for kind, number in counts.items()}
    if batches:
        for name in EPOCH_KINDS:
            having = [kind for kind in shares if name in kind.split("+")]
            sum_of = sum(shares[kind] for kind in having)
            for kind in having:
                shares[kind] *= 1 / batches / sum_of
    others = [kind for kind in shares if not set(kind.split("+")) & set(EPOCH_KINDS)] if batches else list(shares)
    left = 1 - sum(share for kind, share in shares.items() if kind not in others)
    sum_of = sum(shares[kind] for kind in others)
    return {kind: share * (left / sum_of if kind in others and sum_of else 1.0) for kind, share in shares.items()}


def _means(blocks: Sequence[Block]) -> dict[str, float]:
    """Return the mean seconds of a step by its kind, over several blocks."""
    seconds = tuple(value for block in blocks for value in block.seconds)
    return Block(seconds, tuple(kind for block in blocks for kind in block.kinds)).means()
