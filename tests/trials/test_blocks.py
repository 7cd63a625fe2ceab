"""The seconds of a step of the whole run, from blocks of a few steps."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.trials.blocks import Block, kind_of, seconds_per_step


def run(batches: int, first: float, evaluation: int = 0) -> itertools.chain[tuple[str, float]]:
    """The steps of an endless run: kind and seconds."""
    epoch = list[tuple[str, float]]()
    for number in range(batches):
        events, seconds = set[str](), 1.0
        if number == 0:
            events.add("epoch")
            seconds += first
        if evaluation and number % evaluation == evaluation - 1:
            events.add("evaluation")
            seconds += 3.0
        epoch.append((kind_of(events), seconds))
    return itertools.chain.from_iterable(itertools.repeat(epoch))


def blocks_of(steps: itertools.chain[tuple[str, float]], number: int, skipped: int, measured: int) -> list[Block]:
    found: list[Block] = []
    for _ in range(number):
        left_out = [kind for kind, _ in itertools.islice(steps, skipped)]
        kinds, seconds = zip(*itertools.islice(steps, measured), strict=True)
        found.append(Block(seconds, kinds, tuple(left_out)))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    batches=st.integers(1, 12),
    epochs=st.integers(1, 3),
    skipped=st.integers(0, 9),
    evaluation=st.integers(0, 4),
)
def test_blocks_of_whole_epochs_give_the_mean_of_the_run(
    batches: int, epochs: int, skipped: int, evaluation: int
) -> None:
    steps = run(batches, 7.0, evaluation)
    truth = sum(seconds for _, seconds in itertools.islice(run(batches, 7.0, evaluation), batches)) / batches
    found = seconds_per_step({"base": blocks_of(steps, 5, skipped, batches * epochs)}, batches=batches)
    assert found["base"] == pytest.approx([truth] * 5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(batches=st.integers(10, 40), skipped=st.integers(1, 9), measured=st.integers(2, 8), seed=st.integers(0, 99))
def test_blocks_within_epochs_have_the_share_of_the_ends_of_epochs(
    batches: int, skipped: int, measured: int, seed: int
) -> None:
    steps = run(batches, 24.0)
    for _ in range(random.Random(seed).randrange(batches)):
        next(steps)
    blocks = blocks_of(steps, 200, skipped, measured)
    kinds = {kind for block in blocks for kind in block.kinds}
    if "epoch" in kinds:  # else the pauses always fall onto them
        found = seconds_per_step({"base": blocks}, batches=batches)["base"]
        assert sum(found) / 200 == pytest.approx((batches + 24) / batches)


def test_a_kind_that_a_variant_never_had_takes_as_much_longer_as_in_others() -> None:
    base = [Block((2.0, 2.0, 6.0), ("", "", "evaluation")), Block((2.0, 2.0, 2.0), ("", "", ""))]
    after = [Block((1.0, 1.0, 1.0), ("", "", ""))]
    found = seconds_per_step({"base": base, "after": after})
    share = 1 / 9
    assert found["after"] == pytest.approx([1.0 + share * 4.0])
    assert found["base"] == pytest.approx([2.0 + share * 4.0] * 2)


def test_without_blocks_there_is_nothing() -> None:
    assert seconds_per_step({"base": []}) == {"base": []}
